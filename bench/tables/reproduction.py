"""`covspec bench reproduction`: puts what was measured into a document.

The document has a place for each, between `<!-- begin NAME -->` and `<!-- end NAME -->`; what stands there is replaced
by NAME.md of --results, and all else is left alone.
"""

from __future__ import annotations

import re
from pathlib import Path

import typer

from ...common.errors import InvalidRequest
from ...common.flags import flags_of
from ..settings import ReproductionSettings

_PLACE = re.compile(r"(<!-- begin (\S+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


@flags_of(ReproductionSettings)
def command(settings: ReproductionSettings) -> None:
    """Put the results of tables, sweep or Multi-SPIN into a document."""
    document = settings.document
    text = document.read_text(encoding="utf-8")
    document.write_text(filled(text, settings.results), encoding="utf-8")
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
