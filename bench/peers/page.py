"""The results as tables: on the terminal, and as Markdown for a document."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ..grid import grid
from ..tables.text import markdown_table
from .contest import Answers, Side
from .figures import Spread, answer_tokens_per_s, decode_tokens_per_s, equal_share, ratio
from .programs.lines import Crowd

#: Rates in tokens a second; behind each, how many times as fast covspec-exact is.
_HEAD = ("one client", "decoding", "ours ×", "whole answer", "ours ×", "first token, ms", "equal")


def one_client_rows(
    answers: Mapping[Side, Answers], exact: Answers | None
) -> dict[str, dict[str, Any]]:
    """By contender: medians over repetitions, ratios with quartiles, share of the target's own answers."""
    rows = {}
    for side, each in answers.items():
        row: dict[str, Any] = {
            "about": side.contender.about,
            "decode_tokens_per_s": statistics.median(map(decode_tokens_per_s, each)),
            "answer_tokens_per_s": statistics.median(map(answer_tokens_per_s, each)),
            "first_token_s": statistics.median(a.first_s for one in each for a in one),
            "num_tokens": sum(a.num_tokens for a in each[0]),
            "equal": equal_share(each),
        }
        if exact is not None:
            row["exact_decode_ratio"] = asdict(ratio(decode_tokens_per_s, exact, each))
            row["exact_answer_ratio"] = asdict(ratio(answer_tokens_per_s, exact, each))
        rows[side.name] = row
    return rows


def crowd_rows(crowds: Mapping[Side, Mapping[int, Sequence[Crowd]]]) -> dict[str, dict[str, Any]]:
    """By contender and number of clients: tokens a second with quartiles, and counts of equal answers."""
    return {
        side.name: {
            str(size): asdict(Spread.of([crowd.tokens_per_s for crowd in each]))
            | {
                "num_answers": sum(crowd.num_answers for crowd in each),
                "num_equal": sum(crowd.num_equal for crowd in each),
            }
            for size, each in sizes.items()
            if each
        }
        for side, sizes in crowds.items()
    }


def show(console: Console, results: Mapping[str, Any]) -> None:
    """Everything that was measured, without its quartiles, and what was not measured."""
    for title, head, rows in _tables(results):
        plain = [[row[0], *(re.sub(r" \(.*\)", "", cell) for cell in row[1:])] for row in rows]
        console.print(grid(head, plain, title=title))
    for name, reason in _missing(results):
        console.print(f"{name}: {reason}", highlight=False, markup=False)


def lines(results: Mapping[str, Any]) -> list[str]:
    """The same as Markdown, with quartiles, and with what each contender is."""
    about = {
        side: row["about"]
        for suite in results["suites"].values()
        for side, row in suite["one_client"].items()
    }
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    written = [
        f"{results['date']}; {results['cpu']}, one core for each side; {versions or 'no peers'}.",
        "",
        *markdown_table(("contender", "setting"), [[*each] for each in about.items()], left=2),
        "",
    ]
    for title, head, rows in _tables(results):
        written += [f"**{title}**", "", *markdown_table(head, rows), ""]
    if missing := _missing(results):
        written += ["Not measured:", "", *(f"- {name}: {reason}" for name, reason in missing), ""]
    return written


_Table = tuple[str, Sequence[str], list[list[str]]]


def _tables(results: Mapping[str, Any]) -> list[_Table]:
    tables: list[_Table] = []
    for name, suite in results["suites"].items():
        title = f"{name}: {suite['questions']} questions, {suite['repetitions']} repetitions"
        rows = [_one_client(side, row) for side, row in suite["one_client"].items()]
        tables.append((title, _HEAD, rows))
        if suite["crowds"]:
            sizes = list(next(iter(suite["crowds"].values())))
            head = ("clients", *sizes, "equal")
            rows = [_crowd(side, row, sizes) for side, row in suite["crowds"].items()]
            tables.append((f"{name}: crowds", head, rows))
    return tables


def _one_client(side: str, row: Mapping[str, Any]) -> list[str]:
    decode, answer = (
        str(Spread(**row[key])) if key in row else "–"
        for key in ("exact_decode_ratio", "exact_answer_ratio")
    )
    return [
        side,
        f"{row['decode_tokens_per_s']:,.0f}",
        decode,
        f"{row['answer_tokens_per_s']:,.0f}",
        answer,
        f"{1e3 * row['first_token_s']:.0f}",
        f"{row['equal']:.0%}",
    ]


def _crowd(side: str, row: Mapping[str, Any], sizes: Sequence[str]) -> list[str]:
    cells = []
    for size in sizes:
        r = row.get(size)
        cells.append(f"{r['median']:,.0f} ({r['low']:,.0f}–{r['high']:,.0f})" if r else "–")
    num_answers, num_equal = (
        sum(r[key] for r in row.values()) for key in ("num_answers", "num_equal")
    )
    return [side, *cells, f"{num_equal / num_answers:.0%}" if num_answers else "–"]


def _missing(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and reasons, first of peers that are not there, then of what failed in a suite."""
    failed = [
        (f"{name}, {who}", reason)
        for name, suite in results["suites"].items()
        for who, reason in suite["missing"].items()
    ]
    return [*results["missing"].items(), *failed]
