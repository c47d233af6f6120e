"""How commands start: Ctrl-C while their modules are imported, and that nobody waits for torch to read a help text."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from covspec import entry
from covspec.bench.cli import BENCHES, COMMANDS

#: Imported, it presses Ctrl-C.
MODULE = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
def main():
    print("running", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
"""


def start(folder: Path, at_first: signal.Handlers) -> subprocess.CompletedProcess[str]:
    (folder / "slow.py").write_text(MODULE)
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); from covspec import entry; entry._start('slow')"
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=partial(signal.signal, signal.SIGINT, at_first),
    )


def test_ctrl_c_during_imports_ends_a_command_quietly(tmp_path: Path) -> None:
    done = start(tmp_path, signal.SIG_DFL)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_job_in_the_background_goes_on_ignoring_it(tmp_path: Path) -> None:
    done = start(tmp_path, signal.SIG_IGN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "running\n", "")


def test_ctrl_c_does_not_wait_for_a_model_that_loads() -> None:
    code = (
        "import os, signal, sys, time\n"
        "from covspec.edge import server\n"
        "def load(*_, **__):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(50)\n"
        "server.load_model = load\n"
        "sys.argv = ['edge-server', '--port', '0']\n"
        "server.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_every_command_leads_to_a_main(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr(entry, "_start", lambda module: begun.append(import_module(module).main))
    for command in (entry.covspec, entry.device_client, entry.edge_scheduler, entry.edge_server):
        command()
    assert len(set(begun)) == 4 and all(map(callable, begun))


def test_help_texts_need_no_torch() -> None:
    """One process for all of them: what one has imported the next would not."""
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from covspec.bench import cli\n"
        "from covspec.device import client\n"
        "from covspec.edge import schedule_server, server\n"
        "for app, *args in [(cli.app,), (client.app,), (server.app,), (schedule_server.app,), "
        "*((cli.app, n) for n in cli.COMMANDS), *((cli.app, 'bench', n) for n in cli.BENCHES)]:\n"
        "    result = CliRunner().invoke(app, [*args, '--help'])\n"
        "    assert result.exit_code == 0, (args, result.output)\n"
        "    assert 'torch' not in sys.modules, args\n"
    )
    assert COMMANDS and BENCHES
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
