"""Several pages of metrics as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


def merged(pages: Iterable[bytes]) -> bytes:
    """One page with all samples: each metric is described once, as Prometheus demands."""
    found: dict[str, Metric] = {}
    for page in pages:
        for metric in text_string_to_metric_families(page.decode()):
            if metric.name in found:
                found[metric.name].samples += metric.samples
            else:
                found[metric.name] = metric
    registry = CollectorRegistry()
    registry.register(_Found(found))
    return generate_latest(registry)


class _Found(Collector):
    def __init__(self, metrics: dict[str, Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics.values())
