"""Prometheus metrics of an edge: read from its parts when they are asked for, never kept beside them.

Names follow vLLM's (`spec_decode_num_accepted_tokens`, `num_requests_running`, …). The mean accept length, bonus
included, is 1 + accepted / drafts.
"""

from __future__ import annotations

from collections.abc import Iterator
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ..common.errors import InvalidRequest
from .engine import Engine

#: Upper bounds of the batch size histogram.
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class EdgeCollector(Collector):
    """Reads an engine while its thread works: each number is right, two of them may be a step apart."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Called by Prometheus' client for each scrape."""
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


def serve_metrics(engine: Engine, host: str, port: int) -> tuple[WSGIServer, int]:
    """Serves /metrics on its own thread. Returns the server and the port it got. Raises InvalidRequest."""
    registry = CollectorRegistry()
    registry.register(EdgeCollector(engine))
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise InvalidRequest(
            f"cannot serve metrics on {host}:{port} ({error}); choose another --metrics-port"
        ) from None
    return server, server.server_port
