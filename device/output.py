"""How a session shows on a terminal or in a pipe: the answer on stdout, everything else on stderr.

| output | stdout |
|---|---|
| text (default) | the answer as it commits |
| `--show-speculation` | accepted green, ~~rejected~~ red, corrected yellow, bonus cyan, provisional dim, final pink |
| `--jsonl` | one event a line |
| `--json` | one object at the end |
"""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..common.input.tokenizer import TextStream, Tokenizer
from .record import events
from .record.events import Event, as_json
from .record.statistics import Statistics

_STYLES = {
    "accepted": "green",
    "rejected": "red strike",
    "corrected": "yellow",
    "bonus": "cyan",
    "decoded": "",
    "provisional": "dim",
    "gated": "bright_magenta",
}
#: Of a line in a file or a pipe, where nothing needs to wrap.
_FILE_WIDTH = 240

#: The same without colour.
_MARKS = {
    "rejected": ("[-", "-]"),
    "corrected": ("{+", "+}"),
    "bonus": ("{", "}"),
    "gated": ("<", ">"),
    "provisional": ("(", ")"),
}


class _Console(Console):
    """Leaves it to the command what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        """Called while a BrokenPipeError is being handled."""
        self.quiet = True
        raise  # noqa: PLE0704


def console(color: str, *, stderr: bool) -> Console:
    """A console that writes text as it is. color: auto, always or never; auto heeds NO_COLOR and pipes."""
    force = {"always": True, "never": False}.get(color)
    made = _Console(
        stderr=stderr,
        force_terminal=force,
        no_color=True if color == "never" else None,
        highlight=False,
        soft_wrap=True,
    )
    if not made.is_terminal:
        made.width = _FILE_WIDTH
    return made


class TextOutput:
    """Streams the answer."""

    def __init__(self) -> None:
        self._mid_line = False

    def __call__(self, event: Event) -> None:
        """Writes what a commit made certain."""
        match event:
            case events.Committed(text=text) if text:
                self._mid_line = not text.endswith("\n")
                _write(text)
            case events.Done(text=text):
                self._mid_line = not text.endswith("\n")
                self.end_line()

    def end_line(self) -> None:
        """What follows, an error perhaps, starts on a line of its own."""
        if self._mid_line:
            self._mid_line = False
            _write("\n")


class JsonOutput:
    """Writes JSON: every event, or with `only_done` the last one as an object of its own."""

    def __init__(self, *, only_done: bool) -> None:
        self._only_done = only_done

    def __call__(self, event: Event) -> None:
        """Writes an event on a line of its own."""
        out = as_json(event)
        if self._only_done:
            if not isinstance(event, events.Done):
                return
            del out["event"]
        _write(json.dumps(out, ensure_ascii=False, allow_nan=False) + "\n")


class SpeculationOutput:
    """Streams the answer with the fate of every drafted token.

    Provisional text stands as it was shown once it is accepted; what a verdict takes back is shown again, rejected.
    """

    def __init__(self, out: Console, tokenizer: Tokenizer, stop_ids: frozenset[int]) -> None:
        self._out = out
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._text = TextStream(tokenizer)
        self._drafted: tuple[int, ...] = ()
        self._num_shown = 0  # tokens of this round that were shown as provisional
        self._num_final = 0  # tokens of this round that the gate made final
        self._mid_line = False

    def __call__(self, event: Event) -> None:
        """Shows a commit with the draft that it came from."""
        match event:
            case events.Provisional(token_id=token_id, text=text):
                self._num_shown += 1
                if token_id not in self._stop_ids:
                    self._show("provisional", text)
            case events.Committed(gated=True, token_ids=token_ids):
                self._num_final += len(token_ids)
                for token_id in token_ids:
                    self._speak("gated", token_id)
            case events.Drafted(token_ids=token_ids):
                self._drafted = token_ids[self._num_final :]
            case events.Committed():
                self._commit(event)
                self._drafted, self._num_shown, self._num_final = (), 0, 0
            case events.Done():
                self._show("accepted", self._text.finish())
                self._mid_line = True
                self.end_line()

    def end_line(self) -> None:
        """What follows, an error perhaps, starts on a line of its own."""
        if self._mid_line:
            self._mid_line = False
            self._out.print()

    def _commit(self, event: events.Committed) -> None:
        n = event.num_accepted
        for i, token_id in enumerate(event.token_ids[:n]):
            self._speak("accepted", token_id, silent=i < self._num_shown)
        rejected = [t for t in self._drafted[n:] if t not in self._stop_ids]
        if rejected:
            self._show("rejected", self._tokenizer.decode(rejected))
        last = "corrected" if rejected else "bonus" if self._drafted else "decoded"
        for token_id in event.token_ids[n:]:
            self._speak(last, token_id)

    def _speak(self, fate: str, token_id: int, *, silent: bool = False) -> None:
        if token_id not in self._stop_ids:
            text = self._text.push([token_id])
            if not silent:
                self._show(fate, text)

    def _show(self, fate: str, text: str) -> None:
        if not text:
            return
        self._mid_line = True
        if self._out.color_system is None:
            before, after = _MARKS.get(fate, ("", ""))
            text = f"{before}{text}{after}"
        self._out.print(Text(text, style=_STYLES[fate]), end="")


def card(done: events.Done) -> Table:
    """The statistics of a session in a few lines."""
    s = done.statistics
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    lossy = "" if done.lossless else " · lossy: not the target's distribution"
    table.add_row(done.mode, f"{done.model} · ended by {done.finish.value}{lossy}")
    table.add_row(
        "speed",
        f"{_number(s.tokens_per_s, '.1f')} tokens/s · {s.num_tokens} tokens · "
        f"first after {_seconds(s.first_token_s)} · {_seconds(s.total_s)} in all",
    )
    if s.num_draft_tokens:
        table.add_row(
            "rounds",
            f"{s.num_rounds} · accept rate {_number(s.accept_rate, '.3f')} · "
            f"accept length {_number(s.accept_length, '.2f')} · {s.num_draft_tokens} drafted"
            + (f" · {s.num_ahead_tokens} while it opened" if s.num_ahead_tokens else ""),
        )
    if s.num_gated_tokens:
        fate = (
            "verified in the draft that they led"
            if done.lossless
            else "final, never verified (lossy)"
        )
        table.add_row("gate", f"{s.num_gated_tokens} confident tokens · {fate}")
    if s.branches.num_rounds:
        b = s.branches
        table.add_row(
            "branches",
            f"{b.num_hits} hits in {b.num_rounds} rounds · {b.num_hit_tokens} tokens drafted ahead, "
            f"{b.num_wasted_tokens} wasted · {_seconds(b.filled_s)} of {_seconds(b.idle_s)} idle filled",
        )
    if s.num_resumes:
        lost_s = _seconds(s.phases_s["reconnect"])
        table.add_row("link", f"resumed {s.num_resumes}× · {lost_s} lost")
    if s.plans.num_plans:
        hertz = f" · {s.plans.bandwidth_hz:,.0f} Hz" if s.plans.bandwidth_hz else ""
        table.add_row(
            "plan", f"{s.plans.draft_length} tokens{hertz}, the last of {s.plans.num_plans}"
        )
    for name, kinds in (("up", s.traffic.up), ("down", s.traffic.down)):
        if kinds:
            parts = ", ".join(f"{kind} {_bytes(n)}" for kind, n in kinds.most_common())
            table.add_row(name, f"{_bytes(kinds.total())}: {parts}")
    table.add_row("time", _phases(s))
    return table


def _phases(s: Statistics) -> str:
    """Phases in the order of a session; the edge's shares stand behind the wait that holds them."""
    known = ("load", "open", "vision", "select", "prefill", "ahead", "draft", "wait", "correct")
    parts = {phase: _seconds(s.phases_s[phase]) for phase in known if phase in s.phases_s}
    if "wait" in parts and "verify" in s.phases_s:
        queue, verify = _seconds(s.phases_s["queue"]), _seconds(s.phases_s["verify"])
        parts["wait"] += f" (queue {queue}, verify {verify})"
    return ", ".join(f"{phase} {text}" for phase, text in parts.items())


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _number(value: float | None, form: str) -> str:
    return "n/a" if value is None else format(value, form)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def _bytes(value: float) -> str:
    if value < 1000:
        return f"{value:.0f} B"
    if value < 1e6:
        return f"{value / 1e3:.1f} kB"
    return f"{value / 1e6:.2f} MB"
