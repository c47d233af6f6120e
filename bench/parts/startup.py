"""`covspec bench startup`: how long a user waits for an edge, for a first answer, and for the whole demo.

Processes of their own, started cold; the installation is not part of it.
"""

import statistics
import subprocess
import sys
import time

from ..demo import samples
from ..processes import ask, running_edge
from ..progress import track
from ..report import below, bench_of, console_for, finish
from ..settings import BenchSettings

EDGE_READY_S = 15.0
DEMO_S = 30.0


@bench_of(BenchSettings)
def command(settings: BenchSettings) -> None:
    """Measure how long a user waits for an edge, for a first answer, and for the whole demo."""
    ready_s, answer_s, demo_s = [], [], []
    sample = samples()[0]
    console = console_for(settings.as_json)
    for _ in track(range(1 if settings.quick else 3), "starting", console=console):
        with running_edge("--model", "scenes-target") as edge:
            ready_s.append(edge.ready_s)
            began = time.perf_counter()
            ask(edge, "--image", str(sample.image), "--query", sample.question)
            answer_s.append(time.perf_counter() - began)
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "covspec.bench.cli", "demo"],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=300,
        )
        demo_s.append(time.perf_counter() - began)
    median = {
        "edge_ready_s": statistics.median(ready_s),
        "client_s": statistics.median(answer_s),
        "demo_s": statistics.median(demo_s),
    }
    finish(
        "startup",
        {"median": median, "edge_ready_s": ready_s, "client_s": answer_s, "demo_s": demo_s},
        [
            below("edge ready, s", median["edge_ready_s"], EDGE_READY_S),
            below("demo, s", median["demo_s"], DEMO_S),
        ],
        settings,
    )
