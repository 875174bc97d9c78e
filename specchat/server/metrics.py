"""Counters for Prometheus: llama-server's names, and ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from specchat.engine.service import Service
from specchat.server.answer import Answer
from specchat.server.live import Live
from specchat.server.usage import finishes

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """One registry per server; counts since it started."""

    def __init__(self, service: Service) -> None:
        self.live = Live()
        self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self._registry)

        self._prompt = counter("llamacpp:prompt_tokens", "Prompt tokens evaluated")
        self._prompt_seconds = counter("llamacpp:prompt_seconds", "Seconds evaluating prompts")
        self._predicted = counter("llamacpp:tokens_predicted", "Tokens generated")
        self._predicted_seconds = counter(
            "llamacpp:tokens_predicted_seconds", "Seconds generating tokens"
        )
        self._calls = counter("llamacpp:n_decode", "Verification calls of the target")
        self._cached = counter("specchat_cached_tokens", "Prompt tokens found in a cache")
        self._drafted = counter("specchat_drafted_tokens", "Draft tokens verified")
        self._accepted = counter("specchat_accepted_tokens", "Draft tokens accepted")
        self._requests = counter(
            "specchat_requests", "Requests answered", "method", "path", "status"
        )
        self._seconds = Histogram(
            "specchat_request_seconds", "Seconds per request", ["path"], registry=self._registry
        )
        self._registry.register(_Load(service))

    def answered(self, answers: Sequence[Answer]) -> None:
        """Count finished answers."""
        for end in finishes(answers):
            self._prompt.inc(end.usage.prompt_tokens - end.usage.cached_tokens)
            self._prompt_seconds.inc(end.prefill_seconds)
            self._predicted.inc(end.usage.completion_tokens)
            self._predicted_seconds.inc(end.generate_seconds)
            self._calls.inc(end.usage.target_calls)
            self._cached.inc(end.usage.cached_tokens)
            self._drafted.inc(end.usage.drafted_tokens)
            self._accepted.inc(end.usage.accepted_tokens)

    def requested(self, method: str, path: str, status: int, seconds: float) -> None:
        """`path` is a route's template, of which there are few."""
        self._requests.labels(method, path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Load(Collector):
    """Read when asked."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        running, waiting = self._service.load
        yield GaugeMetricFamily("llamacpp:requests_processing", "Being answered", value=running)
        yield GaugeMetricFamily("llamacpp:requests_deferred", "Waiting", value=waiting)
