"""The progress of a running load: a table that is redrawn every second; without a terminal, a line now and then."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ...common.clock import Clock
from ...device.fleet.asked import INTERRUPTED, OK
from ..progress import Lines
from .load import LoadLog

#: The current goodput is that of the last seconds, latencies are those of the last requests.
_RECENT_S, _RECENT_REQUESTS = 5.0, 200
_EVERY_S = 1.0


class LoadProgress:
    """Shows the log of a running load."""

    def __init__(self, log: LoadLog, clock: Clock, console: Console, goal: str) -> None:
        self._log = log
        self._clock = clock
        self._console = console
        self._goal = goal
        self._samples = deque[tuple[float, int]]()

    async def run(self) -> None:
        """Shows the state until this is cancelled, and then the last one."""
        lines = Lines(self._console)
        with Live(self.table(), console=self._console, auto_refresh=False) as live:
            try:
                while True:
                    await asyncio.sleep(_EVERY_S)
                    if self._console.is_terminal:
                        live.update(self.table(), refresh=True)
                    else:
                        lines.print(
                            "; ".join(f"{name} {text}" for name, text in self.rows().items())
                        )
            finally:
                live.update(self.table(), refresh=True)

    def table(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        for name, text in self.rows().items():
            table.add_row(name, text)
        return table

    def rows(self) -> dict[str, str]:
        log, now = self._log, self._clock.now()
        elapsed = now - log.began_s if log.began_s else 0.0
        waiting = log.num_due - len(log.ended) - len(log.running)
        rows = {
            "time": f"{elapsed:.0f} s of {self._goal}",
            "requests": f"{len(log.running)} running · {log.statuses[OK]} answered · {waiting} waiting",
            "goodput": f"{self._goodput(now):,.0f} tokens/s · {log.num_tokens:,} tokens",
            "batch": f"{self._batch_size():.1f} drafts",
        }
        recent = islice(reversed(log.ended), _RECENT_REQUESTS)
        if first := [a.first_token_s for a in recent if a.first_token_s is not None]:
            p50, p99 = np.percentile(first, (50, 99))
            rows["first token"] = f"p50 {1e3 * p50:,.0f} ms · p99 {1e3 * p99:,.0f} ms"
        errors = {s: n for s, n in log.statuses.items() if s not in (OK, INTERRUPTED)}
        text = " · ".join(f"[red]{status} {count}[/]" for status, count in errors.items())
        rows["errors"] = text or "none"
        return rows

    def _goodput(self, now: float) -> float:
        self._samples.append((now, self._log.num_tokens))
        while len(self._samples) > 2 and now - self._samples[0][0] > _RECENT_S:
            self._samples.popleft()
        (then, before), (_, after) = self._samples[0], self._samples[-1]
        return (after - before) / (now - then) if now > then else 0.0

    def _batch_size(self) -> float:
        """Mean over the sessions' newest rounds; a batch of K drafts shows in K sessions."""
        newest = list(self._log.running.values()) or self._log.ended[-_RECENT_REQUESTS:]
        sizes = [a.rounds[-1].batch_size for a in newest if a.rounds]
        return len(sizes) / sum(1 / size for size in sizes) if sizes else 0.0
