"""The package as it is installed: its version, its parts and its commands."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import covspec

ROOT = Path(covspec.__file__).parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_version_is_the_installed_one() -> None:
    assert metadata.version("covspec") == covspec.__version__


def test_every_source_folder_is_packaged() -> None:
    folders = {
        ".".join(("covspec", *path.parent.relative_to(ROOT).parts))
        for path in [ROOT / "__init__.py", *ROOT.glob("[a-z]*/**/__init__.py")]
        if "build" not in path.relative_to(ROOT).parts
    }
    assert folders == set(PYPROJECT["tool"]["setuptools"]["packages"])


def test_every_command_is_there() -> None:
    for entry in metadata.distribution("covspec").entry_points:
        assert callable(entry.load()), entry.name


def test_constraints_are_within_the_supported_ranges() -> None:
    """`pip` would refuse the pair, but only on a new machine."""
    from packaging.requirements import Requirement

    exact = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]
    )
    project = PYPROJECT["project"]
    direct = [Requirement(text) for text in project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        direct += [Requirement(text) for text in extra]
    assert {requirement.name for requirement in direct} == set(exact)
    for requirement in direct:
        assert exact[requirement.name] in requirement.specifier, requirement.name


def test_importing_the_package_needs_no_torch() -> None:
    code = "import sys, covspec.bench.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
