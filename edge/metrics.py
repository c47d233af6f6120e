"""Prometheus metrics of an edge: read from its parts when they are asked for, never kept beside them.

Names follow vLLM's (`spec_decode_num_accepted_tokens`, `num_requests_running`, …). The mean accept length, bonus
included, is 1 + accepted / drafts.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from .engine import Engine
from .scheduling.scheduler import Scheduler
from .scheduling.service import SchedulerService

#: Upper bounds of the batch size histogram.
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class EdgeCollector(Collector):
    """Reads an engine while its thread works: each number is right, two of them may be a step apart."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        batcher, admission = self._engine.batcher, self._engine.admission
        totals, rows = batcher.totals, self._engine.config.max_num_seqs
        for name, text, value in (
            ("spec_decode_num_drafts", "Drafts verified.", totals.rounds),
            ("spec_decode_num_draft_tokens", "Draft tokens verified.", totals.draft_tokens),
            ("spec_decode_num_accepted_tokens", "Draft tokens accepted.", totals.accepted_tokens),
            ("generation_tokens", "Tokens committed at the edge.", totals.committed_tokens),
            ("prompt_tokens", "Prompt tokens prefilled.", totals.prefill_tokens),
            ("engine_steps", "Forward passes.", totals.steps),
            ("engine_busy_seconds", "Seconds the model thread worked.", totals.busy_s),
            ("request_failures", "Jobs that failed.", totals.failed),
        ):
            yield CounterMetricFamily(f"covspec_{name}", text, value=value)
        sessions, tokens = batcher.verify_time.by_sessions, batcher.verify_time.by_tokens
        for name, text, value in (
            ("num_requests_running", "Sessions that hold a row.", admission.num_taken),
            ("num_requests_waiting", "Sessions that wait for a row.", admission.num_waiting),
            ("num_jobs_queued", "Drafts and prefills that wait for a step.", batcher.num_queued),
            ("kv_cache_usage_perc", "Share of rows in use.", admission.num_taken / rows),
            ("verify_fixed_seconds", "T_fix of M(7), over sessions.", sessions.fixed),
            ("verify_per_session_seconds", "T_lin of M(7), for one more session.", sessions.slope),
            ("verify_per_token_seconds", "Verify time of one more token.", tokens.slope),
        ):
            yield GaugeMetricFamily(f"covspec_{name}", text, value=value)
        yield self._batch_sizes()
        if self._engine.scheduler is not None:
            yield from _plans(self._engine.scheduler)

    def _batch_sizes(self) -> Metric:
        sizes = dict(self._engine.batcher.totals.batch_sizes)
        buckets = [
            (str(float(bound)), float(sum(n for size, n in sizes.items() if size <= bound)))
            for bound in _SIZES
        ]
        buckets.append(("+Inf", float(sum(sizes.values()))))
        family = HistogramMetricFamily("covspec_verify_batch_size", "Drafts in one forward pass.")
        family.add_metric([], buckets, float(sum(size * n for size, n in sizes.items())))
        return family


def _plans(scheduler: Scheduler) -> Iterator[Metric]:
    totals = scheduler.totals
    for name, text, value in (
        ("plans", "Plans made.", totals.solved),
        ("plans_adopted", "Plans that were worth the change.", totals.adopted),
        ("plan_failures", "Attempts to plan that failed.", totals.failed),
        ("plan_solve_seconds", "Seconds that solvers took.", totals.solve_s),
        ("plans_told", "Times that a device was told something new.", totals.told),
    ):
        yield CounterMetricFamily(f"covspec_{name}", text, value=value)
    for name, text, level in (
        ("plan_devices", "Devices that follow plans.", scheduler.num_devices),
        ("plan_goodput", "Tokens/s that the last adopted plan expects.", totals.goodput),
        ("plan_failing", "1 while no plan can be had.", scheduler.failing),
    ):
        yield GaugeMetricFamily(f"covspec_{name}", text, value=level)


class SchedulerCollector(Collector):
    def __init__(self, service: SchedulerService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        totals = self._service.totals
        for name, text, value in (
            ("scheduler_plans", "Plans made.", totals.plans),
            ("scheduler_refused", "Requests refused.", totals.refused),
            ("scheduler_devices", "Devices planned for, once for each plan.", totals.devices),
            ("scheduler_solve_seconds", "Seconds that solvers took.", totals.solve_s),
        ):
            yield CounterMetricFamily(f"covspec_{name}", text, value=value)
