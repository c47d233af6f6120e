"""The measured part of docs/multispin.md: tables made of the results of `covspec bench multispin`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...common.protocol.messages import Correction
from ..tables.text import markdown_table
from .claims import Claim
from .figures import CORRECTIONS, PAIRS

PAGE = Path(__file__).parents[2] / "docs" / "multispin.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
_BITS = "bits_per_token"


def fill_page(results: dict[str, Any], found: list[Claim], page: Path = PAGE) -> None:
    """Puts the tables between the page's marks."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{page} has lost its marks"
    page.write_text(f"{before}{BEGIN}\n\n{tables(results, found)}\n{END}{after}", encoding="utf-8")


def tables(results: dict[str, Any], found: list[Claim]) -> str:
    """All tables, Markdown."""
    return "\n".join(
        [
            "### Calibrated times\n",
            *_times(results),
            "\n### The paper's claims\n",
            *_claims(found),
            "\n### Carried out through the server\n",
            *_served(results),
            "\n### Fewer bits per token\n",
            *_bits(results),
            "",
        ]
    )


def _times(results: dict[str, Any]) -> list[str]:
    return markdown_table(
        [
            "pair",
            "T^S, ms/token",
            "T^fix, ms",
            "T^lin, ms/draft",
            "server's draft token (Cen-SPIN), ms",
        ],
        [
            [pair, *(f"{1e3 * value:.3g}" for value in times.values())]
            for pair, times in results["times"].items()
        ],
    )


def _claims(found: list[Claim]) -> list[str]:
    return markdown_table(
        ["figure", "pair", "claim", "stated", "ours", "holds"],
        [
            [
                str(c.figure),
                c.pair,
                c.text,
                c.stated,
                c.ours,
                ("yes" if c.holds else "**no**") + (", calibrated" if c.calibrated else ""),
            ]
            for c in found
        ],
        left=6,
    )


def _served(results: dict[str, Any]) -> list[str]:
    return markdown_table(
        [
            "pair",
            "scheme",
            "measured, tokens/s",
            "theory, tokens/s",
            "tokens/round",
            "expected",
            "round, ms",
            "planned, ms",
        ],
        [
            [
                pair,
                scheme,
                f"{one['measured']:.1f}",
                f"{one['theory']:.1f}",
                f"{one['tokens_per_round']:.1f}",
                f"{one['expected_tokens']:.1f}",
                f"{1e3 * one['round_s']:.0f}",
                f"{1e3 * one['planned_round_s']:.0f}",
            ]
            for pair, by_scheme in results["served"].items()
            for scheme, one in by_scheme.items()
        ],
        left=2,
    )


def _bits(results: dict[str, Any]) -> list[str]:
    rows = []
    for pair in PAIRS:
        for correction in CORRECTIONS:
            six, seven, eight = (
                results["figures"][n][pair.name][correction.value] for n in ("6", "7", "8")
            )
            narrow = {name: values[0] for name, values in seven["goodput"].items()}
            many = {name: values[-1] for name, values in eight["goodput"].items()}
            best = results["figures"]["3"][pair.name][correction.value]["best_length"]
            rows.append(
                [
                    pair.name,
                    f"`{correction.value}`",
                    f"{results[_BITS][pair.name][correction.value]:,}",
                    f"{six['Multi-SPIN']:.1f}",
                    f"{narrow['exact']:.1f}",
                    f"{100 * (narrow['exact'] / narrow['fixed'] - 1):.0f} %",
                    f"{100 * (narrow['exact'] / narrow['homogeneous'] - 1):.1f} %",
                    f"{100 * (many['exact'] / many['fixed'] - 1):.0f} %",
                    str(best),
                ]
            )
    seven = results["figures"]["7"][PAIRS[0].name][Correction.TOPK.value]
    narrowest = f"{seven['bandwidth_hz'][0] / 1e6:g} MHz"
    return markdown_table(
        [
            "pair",
            "correction",
            "bits/token",
            "Multi-SPIN, tokens/s",
            f"at {narrowest}",
            f"over Fixed at {narrowest}",
            f"over Homo at {narrowest}",
            "over Fixed, most devices",
            "best common length, GSM8K",
        ],
        rows,
        left=2,
    )
