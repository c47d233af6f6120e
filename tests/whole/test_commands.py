"""Every command as its user meets it first: help in 80 columns, -h, --version, completion, and without any extra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.commands_page import page
from typer.main import get_command
from typer.testing import CliRunner

from covspec.bench import cli
from covspec.bench.cli import BENCHES, COMMANDS

ROOT = Path(__file__).parents[2]
ENTRIES = ("device_client", "edge_server", "edge_scheduler", "covspec")
ALL = [
    *([entry] for entry in ENTRIES),
    *(["covspec", name] for name in COMMANDS),
    ["covspec", "bench"],
    *(["covspec", "bench", name] for name in BENCHES),
    ["covspec", "loadtest", "compare"],
]
#: What only extras bring.
EXTRAS = (
    "accelerate", "bitsandbytes", "matplotlib", "pyarrow", "safetensors", "scipy", "spacy", "torch", "transformers",
)  # fmt: skip
#: Runs commands one after the other in one process, in which nothing of the extras can be imported.
WITHOUT = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from covspec import entry
def run(command, *args):
    sys.argv = [command.replace("_", "-"), *args]
    try:
        getattr(entry, command)()
    except SystemExit as end:
        return end.code or 0
    return 0
"""


def _typer_command(words: list[str]) -> Any:
    modules = {
        "device_client": "covspec.device.client",
        "edge_server": "covspec.edge.server",
        "edge_scheduler": "covspec.edge.schedule_server",
        "covspec": "covspec.bench.cli",
    }
    found: Any = get_command(import_module(modules[words[0]]).app)
    for word in words[1:]:
        _, found, _ = found.resolve_command(
            found.make_context("x", [], resilient_parsing=True), [word]
        )
    return found


def run(
    code: str, timeout_s: float = 110.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("COVSPEC_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """The help of every command, by `-h`, in a process without extras."""
    code = WITHOUT + (
        f"for words in {ALL!r}:\n"
        "    print('=====', *words, flush=True)\n"
        "    assert run(*words, '-h') == 0, words\n"
        "    sys.stdout.flush()\n"
    )
    done = run(code, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^===== (.*)\n", done.stdout, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_fits_80_columns(words: list[str], helps: dict[str, str]) -> None:
    text = helps[" ".join(words)]
    assert text.startswith("Usage: ") and "…" not in text.split("\n")[0]
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_flag_is_named_whole(words: list[str], helps: dict[str, str]) -> None:
    command = _typer_command(words)
    text = set(re.split(r"[\s,]+", helps[" ".join(words)]))
    assert {f for p in command.params for f in (*p.opts, *p.secondary_opts) if "-" in f} <= text


def test_flags_and_choices_complete_below_covspec_too() -> None:
    for line, wanted in (
        ("covspec sim", "simulate"),
        ("covspec bench tab", "table1\ntable2"),
        ("covspec loadtest --acc", "--accept-rate"),
        ("covspec link --to x:1 --fading ray", "rayleigh"),
    ):
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        env = {"_COVSPEC_COMPLETE": "complete_bash", **words}
        result = CliRunner().invoke(cli.app, prog_name="covspec", env=env)
        assert result.output.strip() == wanted, line


@pytest.mark.parametrize("command", ENTRIES)
def test_the_version_and_completion_need_no_extra(command: str) -> None:
    code = WITHOUT + (
        f"assert run({command!r}, '--version') == 0\n"
        f"assert run({command!r}, '--show-completion', 'bash') == 0\n"
    )
    done = run(code, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0, done.stderr
    name = command.replace("_", "-")
    assert (
        done.stdout.startswith(f"{name} ") and f"complete -o default -F _{command}" in done.stdout
    )


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["edge_server", "--port", "0"], "covspec[device]"),
        (["device_client", "--query", "x", "--mode", "device-only"], "covspec[device]"),
        (["covspec", "bench", "pair", "--quick"], "covspec[edge,device,bench]"),
        (["covspec", "bench", "scheduler", "--quick"], "covspec[edge,device,bench]"),
        (["covspec", "train-pair", "--quick"], "covspec[edge,device,bench]"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_a_missing_extra_is_one_line(words: list[str], extra: str, tmp_path: Path) -> None:
    done = run(f"import os; os.chdir({str(tmp_path)!r})" + WITHOUT + f"sys.exit(run(*{words!r}))")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode in (2, 5), done.stderr
    assert last.startswith("error: ") and extra in last and "Traceback" not in done.stderr


def test_what_needs_no_extra_works_without() -> None:
    code = WITHOUT + (
        "assert run('covspec', 'models') == 0\n"
        "assert run('covspec', 'plan', '/dev/null') == 2\n"
        "assert run('device_client', '--query', 'x', '--edge', '127.0.0.1:1') == 7\n"
        "from covspec.common.models.loader import load_model\n"
        "load_model('table:target-64')\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_plain_install_from_a_wheel(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(wheels), str(ROOT)], check=True)
    venv.create(tmp_path / "venv", with_pip=True)
    bin_ = tmp_path / "venv" / "bin"
    (wheel,) = wheels.glob("covspec-*.whl")
    subprocess.run([bin_ / "python", "-m", "pip", "install", "-q", str(wheel)], check=True)
    for command in ("edge-server", "edge-scheduler", "device-client", "covspec"):
        for flag in ("--version", "-h"):
            subprocess.run([bin_ / command, flag], check=True, cwd=tmp_path, capture_output=True)
    lacking = subprocess.run(
        [bin_ / "edge-server", "--port", "0"], cwd=tmp_path, capture_output=True, text=True
    )
    assert lacking.returncode == 5 and lacking.stderr.count("\n") == 1
    assert "pip install 'covspec[device]'" in lacking.stderr
    for line, code in (
        ("device-client --query x --mode device-only --draft-model table:draft-64", 0),
        ("covspec models", 0),
        ("covspec simulate --duration 1 --num-clients 4", 0),
        ("covspec loadtest --duration 1 --num-clients 2 --model table:target-512", 0),
        ("covspec demo", 7),
        ("covspec bench selection --quick", 2),
        ("covspec bench table1 --quick", 7),
    ):
        program, *args = line.split()
        done = subprocess.run(
            [bin_ / program, *args], cwd=tmp_path, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == code and "Traceback" not in done.stderr, (line, done.stderr)
        assert not code or "pip install 'covspec[" in done.stderr.splitlines()[-1], done.stderr
    trace = bin_.parent.glob("lib/*/site-packages/covspec/bench/load/data/trace.npz")
    assert list(trace), "loadtest's default recording is in the wheel"


def test_the_page_of_commands_is_current() -> None:
    assert (ROOT / "docs" / "commands.md").read_text() == page(), "run `make docs`"
