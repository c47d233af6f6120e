import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import save_internvl

from covspec.common.errors import ModelError
from covspec.common.models.files.weights import find_weights, open_weights
from covspec.common.models.loader import load_model, load_text_side


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_internvl(tmp_path)
    return tmp_path


def shard(folder: Path) -> list[Path]:
    """Cuts the weights in two files with an index; returns the files."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    places = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    files = sorted(set(places.values()))
    for file in files:
        part = {name: tensors[name] for name in names if places[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": places})
    )
    return [folder / file for file in files]


def to_bin(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")


def test_shards_and_bin_files_load(folder: Path) -> None:
    whole = open_weights(find_weights(folder))
    shard(folder)
    assert load_model(str(folder)).vocab_size == 302
    parts = open_weights(find_weights(folder))
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_bin_files_load(folder: Path) -> None:
    to_bin(folder)
    assert load_model(str(folder)).vocab_size == 302
    assert len(open_weights(find_weights(folder))) > 30
    (folder / "generation_config.json").unlink()
    assert load_model(str(folder)).stop_ids


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('code in the weights ran')",)


def test_code_in_bin_files_never_runs(folder: Path) -> None:
    to_bin(folder)
    torch.save({"weight": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(str(folder))
    with pytest.raises(ModelError, match=r"pytorch_model\.bin cannot be read"):
        open_weights(find_weights(folder))


def test_a_missing_shard_is_named(folder: Path) -> None:
    _, second = shard(folder)
    second.unlink()
    with pytest.raises(ModelError, match=f"{second.name} is missing, one of 2 shards: fetch it"):
        load_model(str(folder))


def test_swapped_shards_are_named(folder: Path) -> None:
    first, second = shard(folder)
    first.rename(folder / "other")
    second.rename(first)
    (folder / "other").rename(second)
    with pytest.raises(ModelError, match=f"{first.name} lacks '.*', which .* says is in it"):
        load_model(str(folder))


@pytest.mark.parametrize("size", [0, 4, 200, -1])
def test_cut_shards_are_named(folder: Path, size: int) -> None:
    _, second = shard(folder)
    second.write_bytes(second.read_bytes()[:size])
    with pytest.raises(ModelError, match=rf"{second.name} is (not a whole|cut short)"):
        load_model(str(folder))


def test_a_longer_file_is_not_trusted(folder: Path) -> None:
    with open(folder / "model.safetensors", "ab") as file:
        file.write(b"more")
    with pytest.raises(ModelError, match=r"model\.safetensors is too long"):
        load_model(str(folder))


def test_cut_bin_files_are_named(folder: Path) -> None:
    to_bin(folder)
    file = folder / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is cut short"):
        load_model(str(folder))
    file.write_bytes(pickle.dumps({}))
    with pytest.raises(ModelError, match="older than PyTorch 1.6"):
        load_model(str(folder))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_git_lfs_pointers_are_named(folder: Path, name: str) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 16\n"
    (folder / name).write_text(pointer)
    with pytest.raises(ModelError, match=rf"{name} is a Git LFS pointer.*git lfs pull"):
        load_model(str(folder))
    with pytest.raises(ModelError, match="git lfs pull"):
        load_text_side(str(folder))


def test_an_index_stays_in_its_folder(folder: Path) -> None:
    shard(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(ModelError, match="is not a file beside it"):
        load_model(str(folder))
    for damaged in ("{", "[]", '{"weight_map": 3}'):
        index.write_text(damaged)
        with pytest.raises(ModelError, match=r"index\.json cannot be read"):
            load_model(str(folder))


def test_a_folder_without_weights_says_what_is_there(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model.gguf")
    with pytest.raises(ModelError, match=r"has no weights: .* \(it has model\.gguf, which"):
        load_model(str(folder))
