"""The results of `covspec bench multispin` as Markdown; `covspec bench reproduction` puts it into docs/multispin.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..tables.text import markdown_table
from .claims import Claim
from .figures import CORRECTIONS, PAIRS


def tables(results: dict[str, Any], found: list[Claim]) -> str:
    sections = {
        "Calibrated times": _times(results),
        "The paper's claims": _claims(found),
        "Carried out through the server": _served(results),
        "Fewer bits per token": _bits(results),
    }
    return "\n".join(f"### {title}\n\n{table}\n" for title, table in sections.items())


def _times(results: dict[str, Any]) -> str:
    head = (
        *("pair", "T^S, ms/token", "T^fix, ms", "T^lin, ms/draft"),
        "server's draft token (Cen-SPIN), ms",
    )
    return _table(
        head,
        [
            [pair, *(f"{1e3 * value:.3g}" for value in times.values())]
            for pair, times in results["times"].items()
        ],
    )


def _claims(found: list[Claim]) -> str:
    rows = []
    for c in found:
        holds = ("yes" if c.holds else "**no**") + (", calibrated" if c.calibrated else "")
        rows.append([str(c.figure), c.pair, c.text, c.stated, c.ours, holds])
    return _table(("figure", "pair", "claim", "stated", "ours", "holds"), rows, left=6)


#: Columns of what was served: title, key, scale, form.
_SERVED = (
    ("measured, tokens/s", "measured", 1, ".1f"),
    ("theory, tokens/s", "theory", 1, ".1f"),
    ("tokens/round", "tokens_per_round", 1, ".1f"),
    ("expected", "expected_tokens", 1, ".1f"),
    ("round, ms", "round_s", 1e3, ".0f"),
    ("planned, ms", "planned_round_s", 1e3, ".0f"),
)


def _served(results: dict[str, Any]) -> str:
    rows = [
        [pair, scheme, *(f"{scale * one[key]:{form}}" for _, key, scale, form in _SERVED)]
        for pair, by_scheme in results["served"].items()
        for scheme, one in by_scheme.items()
    ]
    return _table(("pair", "scheme", *(title for title, *_ in _SERVED)), rows, left=2)


def _bits(results: dict[str, Any]) -> str:
    figures, bits = results["figures"], results["bits_per_token"]
    rows = []
    for pair in PAIRS:
        for correction in CORRECTIONS:
            three, six, seven, eight = (
                figures[n][pair.name][correction.value] for n in ("3", "6", "7", "8")
            )
            narrow = {name: values[0] for name, values in seven["goodput"].items()}
            many = {name: values[-1] for name, values in eight["goodput"].items()}
            rows.append(
                [
                    pair.name,
                    f"`{correction.value}`",
                    f"{bits[pair.name][correction.value]:,}",
                    f"{six['Multi-SPIN']:.1f}",
                    f"{narrow['exact']:.1f}",
                    f"{100 * (narrow['exact'] / narrow['fixed'] - 1):.0f} %",
                    f"{100 * (narrow['exact'] / narrow['homogeneous'] - 1):.1f} %",
                    f"{100 * (many['exact'] / many['fixed'] - 1):.0f} %",
                    str(three["best_length"]),
                ]
            )
    narrowest = (
        f"{figures['7'][PAIRS[0].name][CORRECTIONS[0].value]['bandwidth_hz'][0] / 1e6:g} MHz"
    )
    head = (
        *("pair", "correction", "bits/token", "Multi-SPIN, tokens/s", f"at {narrowest}"),
        *(f"over Fixed at {narrowest}", f"over Homo at {narrowest}", "over Fixed, most devices"),
        "best common length, GSM8K",
    )
    return _table(head, rows, left=2)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    return "\n".join(markdown_table(head, rows, left))
