"""`covspec bench accept-rates`: how often a target accepts what a draft proposes, by kind of text.

Multi-SPIN's Table I, measured: of every drafted token the acceptance probability min(1, p(x)/q(x)), M(4), averaged
over the tokens of a prompt; mean and standard deviation over the prompts of a task. Both models run in this process,
one after the other, so that drafting and verification are timed without a link: T_d of a token, and T_v of a step of
one token and of a whole draft. Greedy (--temperature 0) the probability is 1 where the token is the target's own, else
0. Beside it stands the accept rate: accepted tokens over those that were judged, none behind a rejected one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ...common.errors import InvalidRequest
from ...common.maths.accept import (
    accept_probability,
    ceil_logprob,
    distribution,
    float16_row,
    greedy_token,
    q_tilde,
)
from ...common.maths.sampling import Sampling
from ...common.models.loader import load_draft_model, load_model
from ...common.models.model import Model, Step
from ...common.protocol.messages import Correction, Draft
from ...device.drafting.block import Block
from ...device.drafting.corrections import make_corrector
from ...device.drafting.draft_token import DraftToken
from ...device.drafting.drafter import Drafter
from ...device.request import Request
from ...edge.batching.judge import judge
from ..grid import grid
from ..progress import track
from ..report import bench_of, console_for, finish
from ..settings import AcceptRatesSettings
from ..suites.task import asked_tasks

#: The mode in which nobody has to draw a correction elsewhere.
_CORRECTION = Correction.EDGE


@dataclass(slots=True)
class Answer:
    """One prompt, answered by both models. Times in seconds: of each token's drafting, of each step by its tokens."""

    token_ids: list[int] = field(default_factory=list)
    num_rounds: int = 0
    num_judged: int = 0
    num_accepted: int = 0
    #: Acceptance probability of every drafted token.
    accept: list[float] = field(default_factory=list)
    draft_token_s: list[float] = field(default_factory=list)
    verify_s: dict[int, list[float]] = field(default_factory=dict)


@bench_of(AcceptRatesSettings)
def command(settings: AcceptRatesSettings) -> None:
    """Measure how often drafts are accepted, by kind of text: Multi-SPIN's Table I."""
    target_name, draft_name = settings.models
    count = 1 if settings.quick else settings.examples or None
    cap = 16 if settings.quick else settings.max_new_tokens
    questions = asked_tasks(settings.task, settings.data, count, settings.seed)
    console = console_for(settings.as_json)
    threads = settings.threads or None
    target = load_model(target_name, quantization=settings.quantization, num_threads=threads)
    draft = load_draft_model(draft_name, num_threads=threads)
    if draft.tokenizer.fingerprint != target.tokenizer.fingerprint:
        raise InvalidRequest(f"--pair: {draft_name} and {target_name} have different tokenizers")
    sampling = Sampling(temperature=settings.temperature, seed=settings.seed, max_new_tokens=cap)
    results = {
        task: summary(
            [
                answer(target, draft, question.request(draft, sampling), settings.draft_length)
                for question in track(asked, task, console=console)
            ]
        )
        for task, asked in questions.items()
    }
    _show(console, results, settings)
    finish(
        "accept-rates",
        {
            "pair": [target_name, draft_name],
            "temperature": settings.temperature,
            "draft_length": settings.draft_length,
            "max_new_tokens": cap,
            "tasks": results,
        },
        [],
        settings,
    )


def answer(target: Model, draft: Model, request: Request, draft_length: int) -> Answer:
    """Answers a prompt as a device and an edge would, one after the other."""
    sampling, prompt = request.sampling, list(request.prompt.ids)
    drafter = Drafter(draft, make_corrector(_CORRECTION, sampling))
    drafter.prefill(request.prompt, (), sampling.max_new_tokens)
    row_len = min(target.max_model_len, len(prompt) + sampling.max_new_tokens + draft_length + 1)
    target.allocate(1, row_len)
    target.forward([Step(0, 0, prompt[:-1])])
    result, committed, pending, kv_len = Answer(), list[int](), prompt[-1:], len(prompt) - 1
    while len(committed) < sampling.max_new_tokens:
        longest = min(draft_length, sampling.max_new_tokens - len(committed) - 1, drafter.room)
        block = Block(longest, stop_ids=target.stop_ids)
        began = time.perf_counter()
        tokens = drafter.propose(block) if longest > 0 else []
        drafted = time.perf_counter()
        ids = [token.token_id for token in tokens]
        step = Step(0, kv_len, (*pending, *ids), num_logits=len(ids) + 1)
        logits = target.forward([step])[0].logits
        verified = time.perf_counter()
        evidence = drafter.corrector.evidence(tokens)
        sent = Draft(
            result.num_rounds, len(committed), tuple(ids), evidence.logprobs, rows=evidence.rows
        )
        verdict = judge(logits, sent, sampling, _CORRECTION, len(committed))
        assert verdict.token_id is not None, "the edge names the correction in this mode"
        said = [*ids[: verdict.num_accepted], verdict.token_id]
        ended = next((i for i, token in enumerate(said) if token in target.stop_ids), None)
        said = said if ended is None else said[: ended + 1]
        result.num_rounds += 1
        result.num_judged += min(verdict.num_accepted + 1, len(ids))
        result.num_accepted += verdict.num_accepted
        result.accept.extend(_accept_probabilities(tokens, logits, sampling))
        if ids:
            result.draft_token_s.append((drafted - began) / len(ids))
        result.verify_s.setdefault(step.num_tokens, []).append(verified - drafted)
        committed += said
        if ended is not None or kv_len + step.num_tokens >= row_len:
            break
        kv_len += len(pending) + verdict.num_accepted
        pending = [verdict.token_id]
        drafter.commit(said)
    result.token_ids = committed
    return result


def _accept_probabilities(
    tokens: Sequence[DraftToken], logits: NDArray[np.float32], sampling: Sampling
) -> list[float]:
    """min(1, p(x)/q~(x)) of every drafted token, those behind a rejected one as well: p is given what was drafted."""
    if sampling.greedy:
        return [
            float(t.token_id == greedy_token(row)) for t, row in zip(tokens, logits, strict=False)
        ]
    found = []
    for token, row in zip(tokens, logits, strict=False):
        assert token.q is not None, "a sampled draft token knows its distribution"
        p = distribution(float16_row(row), sampling)
        q = q_tilde(ceil_logprob(token.q[token.token_id]))
        found.append(accept_probability(float(p[token.token_id]), float(q)))
    return found


def summary(answers: Sequence[Answer]) -> dict[str, Any]:
    """A task's numbers. Prompts for which nothing was drafted have no acceptance probability."""
    means = [statistics.fmean(each.accept) for each in answers if each.accept]
    num_judged = sum(each.num_judged for each in answers)
    steps: dict[int, list[float]] = {}
    for each in answers:
        for num_tokens, seconds in each.verify_s.items():
            steps.setdefault(num_tokens, []).extend(seconds)
    drafting = [s for each in answers for s in each.draft_token_s]
    return {
        "prompts": len(answers),
        "tokens": sum(len(each.token_ids) for each in answers),
        "accept_probability": statistics.fmean(means) if means else None,
        "accept_probability_std": statistics.pstdev(means) if means else None,
        "accept_rate": sum(each.num_accepted for each in answers) / num_judged
        if num_judged
        else None,
        "accept_length": sum(len(each.token_ids) for each in answers)
        / sum(each.num_rounds for each in answers),
        "drafted_per_token": sum(len(each.accept) for each in answers)
        / sum(len(each.token_ids) for each in answers),
        "draft_token_s": statistics.median(drafting) if drafting else None,
        "verify_s": {n: statistics.median(seconds) for n, seconds in sorted(steps.items())},
    }


def _show(
    console: Console, results: dict[str, dict[str, Any]], settings: AcceptRatesSettings
) -> None:
    head = (
        "task",
        "acceptance",
        "accept rate",
        "tokens a round",
        "drafted a token",
        "T_d",
        "T_v(1)",
        "T_v(k)",
    )
    rows = []
    for task, r in results.items():
        steps = r["verify_s"]
        rows.append(
            (
                task,
                _known(r["accept_probability"], "{:.3f} ± ")
                + _known(r["accept_probability_std"], "{:.3f}"),
                _known(r["accept_rate"], "{:.3f}"),
                f"{r['accept_length']:.2f}",
                f"{r['drafted_per_token']:.2f}",
                _known(r["draft_token_s"] and 1e3 * r["draft_token_s"], "{:.2f} ms"),
                _known(1e3 * steps[1] if 1 in steps else None, "{:.1f} ms"),
                f"{1e3 * steps[max(steps)]:.1f} ms ({max(steps)})",
            )
        )
    console.print(grid(head, rows, title=f"{settings.pair}, temperature {settings.temperature:g}"))


def _known(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
