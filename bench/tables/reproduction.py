"""`covspec bench reproduction`: puts what the tables and the sweep measured into docs/reproduction.md.

The document has a place for each, between `<!-- begin NAME -->` and `<!-- end NAME -->`; what stands there is replaced
by bench/results/NAME.md, and all else is left alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ...common.errors import InvalidRequest
from ..report import RESULTS_DIR

DOCUMENT = Path(__file__).parents[2] / "docs" / "reproduction.md"
_PLACE = re.compile(r"(<!-- begin (\S+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def command(
    document: Annotated[Path, typer.Option(help="The document with the places.")] = DOCUMENT,
    results: Annotated[Path, typer.Option(help="Folder of the results.")] = RESULTS_DIR,
) -> None:
    """Put the tables' results into docs/reproduction.md."""
    text = document.read_text(encoding="utf-8")
    document.write_text(filled(text, results), encoding="utf-8")
    typer.echo(f"{document}: {', '.join(name for _, name, _ in _PLACE.findall(text))}")


def filled(text: str, results: Path) -> str:
    """The document with every place that there are results for filled in anew."""
    if not _PLACE.search(text):
        raise InvalidRequest("the document has no place such as <!-- begin table1 -->")

    def fill(place: re.Match[str]) -> str:
        path = results / f"{place[2]}.md"
        if not path.is_file():
            return place[0]
        return f"{place[1]}\n{path.read_text(encoding='utf-8').strip()}\n\n{place[3]}"

    return _PLACE.sub(fill, text)
