"""GET /metrics: counts for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from fastapi.responses import Response

from hotset.server.experts import Picture, take_picture
from hotset.server.serving import Serving, ServingOf

if TYPE_CHECKING:
    from prometheus_client.core import Metric

router = APIRouter()


@router.get("/metrics", response_class=Response)
async def metrics(serving: ServingOf) -> Response:
    """Everything that is counted, in Prometheus' text form."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    picture = await serving.call(partial(take_picture, serving.engine))
    return Response(generate_latest(Found(list(families(serving, picture)))), media_type=CONTENT_TYPE_LATEST)


class Found:
    """Counts as Prometheus' client collects them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def families(serving: Serving, picture: Picture) -> Iterator[Metric]:
    """Of requests and tokens, of the engine, and of the expert cache layer by layer."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    scheduler, worker = serving.scheduler, serving.worker
    totals, stats = scheduler.totals, picture.stats

    def counter(name: str, text: str, value: float) -> Any:
        return CounterMetricFamily(f"hotset_{name}", text, value=value)

    def gauge(name: str, text: str, value: float) -> Any:
        return GaugeMetricFamily(f"hotset_{name}", text, value=value)

    yield counter("prompt_tokens", "Prompt tokens computed.", totals.prompt_tokens)
    yield counter("cached_tokens", "Prompt tokens taken over from the KV cache.", totals.cached_tokens)
    yield counter("generated_tokens", "Tokens generated.", totals.completion_tokens)
    yield counter("decode_steps", "Decode steps of all sequences together.", totals.steps)
    yield counter("prompt_chunks", "Chunks of prompts computed.", totals.chunks)
    requests = CounterMetricFamily("hotset_requests", "Requests by how they ended.", labels=["end"])
    for end in ("finished", "failed", "cancelled"):
        requests.add_metric([end], getattr(totals, end))
    yield requests
    yield gauge("requests_running", "Requests that run.", scheduler.n_running)
    yield gauge("requests_waiting", "Requests that wait.", scheduler.n_waiting)
    yield counter("engine_restarts", "Times that the engine was started again after an error.", worker.n_restarts)
    if stats.fetch_ms is not None:
        yield counter("fetch_seconds", "Time that the GPU spent fetching experts.", stats.fetch_ms / 1e3)
    if stats.prefetched is not None:
        text = "Bytes of experts that came before they were picked: needed ones are fetched bytes too, those in vain came on top."
        ahead = CounterMetricFamily("hotset_prefetched_bytes", text, labels=["end"])
        ahead.add_metric(["needed"], stats.prefetched.needed)
        ahead.add_metric(["in_vain"], stats.prefetched.in_vain)
        yield ahead
    memory = GaugeMetricFamily("hotset_memory_bytes", "Memory set aside while loading.", labels=["name", "where"])
    for row in scheduler.engine.memory.rows:
        memory.add_metric([row.name, row.where], row.n_bytes)
    yield memory
    yield from cache_families(picture)


def cache_families(picture: Picture) -> Iterator[Metric]:
    """The expert cache; decoding and prompts apart."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    stats = picture.stats
    active = GaugeMetricFamily(
        "hotset_expert_cache_active",
        "1 where the cache moves experts to a GPU, else 0 with the reason.",
        labels=["policy", "reason"],
    )
    active.add_metric([stats.policy, stats.reason], stats.active)
    yield active
    columns = {
        "hits": "Distinct experts that a request of a layer found resident.",
        "misses": "Distinct experts that it did not find.",
        "overflows": "Misses that found no slot.",
        "bytes_fetched": "Bytes that misses brought, or would have where nothing is fetched.",
    }
    for name, text in columns.items():
        family = CounterMetricFamily(f"hotset_expert_{name}", text, labels=["layer", "phase"])
        for phase, layers in (("decode", stats.layers), ("prompt", stats.prompt.layers)):
            for i, layer in enumerate(layers):
                family.add_metric([str(i), phase], getattr(layer, name))
        yield family
    slots = GaugeMetricFamily("hotset_expert_slots", "Slots of the expert cache.", labels=["layer"])
    resident = GaugeMetricFamily("hotset_expert_resident", "Experts that lie in a slot.", labels=["layer"])
    for i, layer in enumerate(stats.layers):
        slots.add_metric([str(i)], layer.n_slots)
        resident.add_metric([str(i)], int(picture.found.resident[i].sum()))
    yield slots
    yield resident
