"""Prometheus metrics, under vLLM's names.

Counters of tokens and drafts are read from the engine as they are asked for. Times are observed at
each step that wrote something: the time between two such steps of a sample is its *inter-block*
latency, and the same divided by the block's tokens, once for each, its *inter-token* latency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from foretoken.async_llm import AsyncLLM
from foretoken.engine.outputs import RequestOutput
from foretoken.engine.stats import EngineStats
from foretoken.sampling.params import SamplingParams

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _buckets(text: str) -> list[float]:
    return [float(bound) for bound in text.split()]


_FIRST = _buckets(
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
)
_BETWEEN = _buckets("0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80")
_WHOLE = _buckets("0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680")
_SAMPLES = [1, 2, 5, 10, 20]

_TIMES = {
    "time_to_first_token_seconds": ("From arrival to the first token.", _FIRST),
    "inter_token_latency_seconds": ("Time between blocks, shared by a block's tokens.", _BETWEEN),
    "inter_block_latency_seconds": ("Time between two steps that wrote.", _BETWEEN),
    "request_time_per_output_token_seconds": ("A request's mean time per token.", _BETWEEN),
    "e2e_request_latency_seconds": ("From arrival to the last token.", _WHOLE),
    "request_queue_time_seconds": ("From arrival to the first pass.", _WHOLE),
    "request_prefill_time_seconds": ("From the first pass to the first token.", _WHOLE),
    "request_decode_time_seconds": ("From the first token to the last.", _WHOLE),
    "request_inference_time_seconds": ("From the first pass to the last token.", _WHOLE),
}
_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "timeout": "abort"}
_LABELS = ("model_name", "engine")


class Metrics:
    """A server's metrics."""

    def __init__(
        self, llm: AsyncLLM, model: str, prefix: str, context: int, engine: int = 0
    ) -> None:
        self._labels, self._prefix = (model, str(engine)), prefix
        self.registry = CollectorRegistry()
        self.times = {name: self._histogram(name, *described) for name, described in _TIMES.items()}
        series = _series(context)
        self.prompt = self._histogram("request_prompt_tokens", "Tokens of prompts.", series)
        self.written = self._histogram("request_generation_tokens", "Tokens of answers.", series)
        self.samples = self._histogram("request_params_n", "Samples asked for.", _SAMPLES)
        self.asked = self._histogram("request_params_max_tokens", "Tokens asked for.", series)
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts, cached ones too.")
        self._ended = self._counter("request_success", "Requests that ended.", "finished_reason")
        self._rejected = self._counter("admission_rejections", "Requests refused.", "reason")
        self.registry.register(_EngineCollector(llm, prefix, self._labels))

    def _histogram(self, name: str, help_: str, buckets: list[float] | list[int]) -> Histogram:
        made = Histogram(
            f"{self._prefix}:{name}", help_, _LABELS, buckets=buckets, registry=self.registry
        )
        return made.labels(*self._labels)

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        made = Counter(f"{self._prefix}:{name}", help_, (*_LABELS, *labels), registry=self.registry)
        return made if labels else made.labels(*self._labels)

    def ended(self, reason: str) -> None:
        """Count a request that has ended."""
        self._ended.labels(*self._labels, reason).inc()

    def rejected(self, reason: str) -> None:
        """Count a request that wasn't taken."""
        self._rejected.labels(*self._labels, reason).inc()

    def watch(self, params: SamplingParams) -> Watch:
        """What observes one request."""
        return Watch(self, params)

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self.registry)


class Watch:
    """Observes one request, on the engine's thread."""

    def __init__(self, metrics: Metrics, params: SamplingParams) -> None:
        self._metrics, self._params = metrics, params
        self._known = [0] * params.n  # tokens of each sample
        self._times = [0.0] * params.n  # of its last block
        self._ended = False

    def see(self, output: RequestOutput) -> None:
        """The request after a step."""
        now, times = perf_counter(), self._metrics.times
        for place, sample in enumerate(output.outputs):
            new = len(sample.token_ids) - self._known[place]
            if new <= 0:
                continue
            if self._known[place]:
                gap = now - self._times[place]
                times["inter_block_latency_seconds"].observe(gap)
                for _ in range(new):
                    times["inter_token_latency_seconds"].observe(gap / new)
            elif not any(self._known):
                self._metrics.prompt_tokens.inc(len(output.prompt_token_ids))
                times["time_to_first_token_seconds"].observe(now - output.stats.arrived)
            self._known[place], self._times[place] = len(sample.token_ids), now
        if output.finished and not self._ended:
            self._end(output)

    def _end(self, output: RequestOutput) -> None:
        self._ended = True
        reason = output.outputs[0].finish_reason or ""
        self._metrics.ended(_REASONS.get(reason, "error"))
        self._metrics.samples.observe(self._params.n)
        self._metrics.prompt.observe(len(output.prompt_token_ids))
        self._metrics.written.observe(sum(self._known))
        if self._params.max_tokens is not None:
            self._metrics.asked.observe(self._params.max_tokens)
        stats, times = output.stats, self._metrics.times
        first, total, queued = stats.time_to_first_token, stats.total_time, stats.queue_time or 0.0
        if first is None or total is None:
            return
        times["e2e_request_latency_seconds"].observe(total)
        times["request_queue_time_seconds"].observe(queued)
        times["request_prefill_time_seconds"].observe(first - queued)
        times["request_decode_time_seconds"].observe(total - first)
        times["request_inference_time_seconds"].observe(total - queued)
        longest = max(self._known)
        if longest > 1:
            mean = (total - first) / (longest - 1)
            times["request_time_per_output_token_seconds"].observe(mean)

    def close(self) -> None:
        """Nobody waits for the request any more."""
        if not self._ended:
            self._ended = True
            self._metrics.ended("abort")


_COUNTED: dict[str, tuple[str, Callable[[EngineStats], int]]] = {
    "generation_tokens": ("Tokens that were written.", lambda s: s.tokens),
    "spec_decode_num_drafts": ("Passes that checked a draft.", lambda s: s.drafts),
    "spec_decode_num_draft_tokens": ("Tokens that were drafted.", lambda s: s.drafted),
    "spec_decode_num_accepted_tokens": ("Drafted tokens that were kept.", lambda s: s.accepted),
    "prefix_cache_queries": ("Tokens looked up in caches.", lambda s: s.prefix_cache_queries),
    "prefix_cache_hits": ("Tokens that caches had.", lambda s: s.prefix_cache_hits),
    "target_passes": ("Passes of the model, for each sequence.", lambda s: s.passes),
}
_AT = "spec_decode_num_accepted_tokens_per_pos"


class _EngineCollector(Collector):
    """Reads the engine's totals. A counter never falls, though a request that fails is taken out of
    the totals."""

    def __init__(self, llm: AsyncLLM, prefix: str, labels: tuple[str, str]) -> None:
        self._llm, self._prefix, self._labels = llm, prefix, labels
        self._most: dict[str, int] = {}

    def _rising(self, name: str, value: int) -> int:
        self._most[name] = max(value, self._most.get(name, 0))
        return self._most[name]

    def collect(self) -> Iterator[Metric]:
        load = self._llm.load
        yield self._gauge("num_requests_running", "Requests that are being written.", load.running)
        yield self._gauge("num_requests_waiting", "Requests that wait.", load.waiting)
        if self._llm.llm.worker.closed:
            return
        engine = self._llm.llm.engine
        stats, budget = engine.stats, engine.target.budget
        share = budget.reserved / budget.limit if budget.limit else 0.0
        yield self._gauge("kv_cache_usage_perc", "Share of the caches' memory.", share)
        for name, (help_, value) in _COUNTED.items():
            family = CounterMetricFamily(f"{self._prefix}:{name}", help_, labels=_LABELS)
            family.add_metric(self._labels, self._rising(name, value(stats)))
            yield family
        yield self._by_position(stats)

    def _by_position(self, stats: EngineStats) -> Metric:
        family = CounterMetricFamily(
            f"{self._prefix}:{_AT}", "Kept tokens by place.", labels=(*_LABELS, "position")
        )
        for place, count in enumerate(list(stats.accepted_at)):
            kept = self._rising(f"{_AT}{place}", count)
            family.add_metric((*self._labels, str(place)), kept)
        return family

    def _gauge(self, name: str, help_: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{self._prefix}:{name}", help_, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family


def _series(most: int) -> list[int]:
    """1, 2, 5, 10 … up to `most`."""
    steps = [step * 10**power for power in range(len(str(most)) + 1) for step in (1, 2, 5)]
    return [step for step in steps if step <= most] or [1]
