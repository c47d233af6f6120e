"""`covspec bench peers`: other programs beside ours, on the same pair, the same prompts and one core for each side.

    covspec bench peers --install            makes the environments that are missing, then measures
    covspec bench peers --peer transformers  beside this peer alone

One client: every question of every contender in turn, many times over. Crowds: 1 to 64 clients in a closed loop, of
each contender in turn. Settings of peers are chosen on other questions. A peer that is not installed, or that fails, is
named with its reason.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console

from ...common.errors import InvalidRequest
from ...common.models.loader import load_draft_model, load_model
from ...common.models.model import Model
from ..report import Bar, at_least, bench_of, console_for, finish, machine, result_path
from ..settings import PeersSettings
from .contest import Answers, Contest, Side
from .environments import PEERS, UNABLE, Peer, install, is_installed, start
from .figures import answer_tokens_per_s, decode_tokens_per_s, ratio
from .page import crowd_rows, lines, one_client_rows, show
from .process import PeerProcess
from .questions import SUITES, Counts, Suite, make_opening, make_suite

PAIR = "scenes-target", "scenes-draft"
OURS, EXACT = "covspec", "covspec, covspec-exact"
CROWDS = (1, 8, 32, 64)
CROWD_REPETITIONS = 3
#: covspec-exact over Transformers' assisted generation, whichever of its settings is the fastest.
DECODING_BAR, ANSWER_BAR = 2.2, 1.5
_QUICK = Counts(judged=2, tuning=0, crowd=0)
_NUM_TUNING, _NUM_CROWD = 6, 48


@bench_of(PeersSettings)
def command(settings: PeersSettings) -> None:
    """Other programs beside ours, each in its own environment: speed with its spread, and whether answers are equal."""
    console = console_for(settings.as_json)
    peers = _chosen(settings.peer, PEERS, "--peer")
    suites = _chosen(settings.suite, dict.fromkeys(SUITES), "--suite")
    folder = settings.environments
    if settings.install:
        install(folder, [PEERS[name].environment for name in peers], console)
    missing = {
        name: "not installed; give --install"
        for name in peers
        if not is_installed(folder, PEERS[name].environment)
    }
    missing |= {} if settings.peer else UNABLE
    running = {} if settings.quick else {n: PEERS[n] for n in peers if n not in missing}
    target = load_model(PAIR[0], quantization=settings.quantization, num_threads=1)
    draft = load_draft_model(PAIR[1], num_threads=1)
    results: dict[str, Any] = {
        "date": date.today().isoformat(),
        "cpu": machine()["cpu"],
        "pair": list(PAIR),
        "quantization": settings.quantization,
        "suites": {},
        "missing": missing,
        "versions": {},
    }
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory(prefix="covspec-peers-") as work:
        for name in suites:
            suite = make_suite(name, target, draft, PAIR[0], _counts(settings), Path(work) / name)
            measured, its_bars = _measure(settings, suite, target, running, Path(work), console)
            results["versions"] |= measured.pop("versions")
            results["suites"][name] = measured
            bars += its_bars
    show(console, results)
    result_path(settings, "peers.md").write_text("\n".join(lines(results)) + "\n", encoding="utf-8")
    finish("peers", results, bars, settings)


def _measure(
    settings: PeersSettings,
    suite: Suite,
    target: Model,
    peers: Mapping[str, Peer],
    work: Path,
    console: Console,
) -> tuple[dict[str, Any], list[Bar]]:
    """One suite: the results of all contenders, and the bars."""
    opening = make_opening(suite, target, PAIR, work / suite.name, settings.quantization)
    repetitions = 2 if settings.quick else settings.repetitions
    with Contest(console) as contest:
        # Its edge goes to the server's core.
        ours = PeerProcess([sys.executable, "-m", f"{__package__}.ours"], opening.client_core)
        contest.add(OURS, ours, opening)
        for peer in peers.values():
            if suite.name in peer.suites:
                process = start(peer, settings.environments, opening.server_core)
                contest.add(peer.title, process, opening)
        if suite.tuning:
            contest.tune(suite.tuning)
        alone = [side for side in contest.sides if side.contender.alone]
        answers = contest.ask(alone, suite.judged, repetitions, f"{suite.name}, one client")
        crowds = (
            contest.crowds(CROWDS, suite.crowd, settings.crowd_s, CROWD_REPETITIONS)
            if suite.crowd
            else {}
        )
        exact = next((each for side, each in answers.items() if side.name == EXACT), None)
        measured = {
            "versions": contest.versions,
            "missing": contest.missing,
            "questions": len(suite.judged),
            "repetitions": repetitions,
            "draft_token_s": suite.draft_token_s,
            "draft_prefill_s": suite.draft_prefill_s,
            "one_client": one_client_rows(answers, exact),
            "crowds": crowd_rows(crowds),
        }
        return measured, _bars(suite, answers, exact)


def _bars(suite: Suite, answers: Mapping[Side, Answers], exact: Answers | None) -> list[Bar]:
    if exact is None:
        return []
    equal = sum(a.equal for each in exact for a in each) / sum(map(len, exact))
    bars = [at_least(f"{EXACT}: share of equal texts, {suite.name}", equal, 1.0)]
    assisted = [
        each
        for side, each in answers.items()
        if side.title == PEERS["transformers"].title and side.contender.name != "plain"
    ]
    if suite.name == "pictures" and assisted:
        for what, rate, bar in (
            ("decoding", decode_tokens_per_s, DECODING_BAR),
            ("whole answers", answer_tokens_per_s, ANSWER_BAR),
        ):
            least = min(ratio(rate, exact, each).median for each in assisted)
            bars.append(at_least(f"{EXACT} over Transformers assisted, {what}", least, bar))
    return bars


def _counts(settings: PeersSettings) -> Counts:
    if settings.quick:
        return _QUICK
    return Counts(settings.questions, _NUM_TUNING, _NUM_CROWD if settings.crowd_s else 0)


def _chosen(names: Sequence[str], known: Mapping[str, Any], flag: str) -> list[str]:
    for name in names:
        if name not in known:
            raise InvalidRequest(f"{flag} must be one of {', '.join(known)}, not {name!r}")
    return list(dict.fromkeys(names)) or list(known)
