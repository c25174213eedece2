"""GET /v1/experts, the map of the expert cache, and POST /v1/experts/cache, which changes its size while the server runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from pydantic import Field

from hotset.experts.slots import CacheSize
from hotset.server.fields import Body
from hotset.server.serving import ServingOf
from hotset.server.strict_json import StrictRoute

if TYPE_CHECKING:
    from hotset.engine.engine import Engine
    from hotset.engine.stats import Stats
    from hotset.experts.expert_map import ExpertMap

router = APIRouter(route_class=StrictRoute)
FULL = 100


@dataclass(frozen=True, eq=False)
class Picture:
    """What the engine's thread copies for an answer."""

    found: ExpertMap
    stats: Stats


def take_picture(engine: Engine) -> Picture:
    """Call on the engine's thread."""
    return Picture(engine.runner.expert_map(), engine.stats())


class ResizeRequest(Body):
    """`size` as --expert-cache takes it: 6GiB, 25%, 16slots, auto or off."""

    size: str = Field(min_length=1, max_length=40)


@router.get("/v1/experts")
async def experts(serving: ServingOf, since: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0) -> dict[str, Any]:
    """Per layer: slots, counts, experts that are resident, how warm each is (0 to 100), and which were picked after step `since`."""
    engine = serving.engine
    picture = await serving.call(partial(take_picture, engine))
    found, stats = picture.found, picture.stats
    picked = found.picked_since(since)
    heat = np.rint(found.heat * FULL).astype(int)
    layers = [
        {
            "n_slots": layer.n_slots,
            "hits": layer.hits,
            "misses": layer.misses,
            "overflows": layer.overflows,
            "bytes_fetched": layer.bytes_fetched,
            "resident": np.flatnonzero(found.resident[i]).tolist(),
            "heat": heat[i].tolist(),
            "picked": picked[i],
        }
        for i, layer in enumerate(stats.layers)
    ]
    return {**cache_facts(engine, stats), "step": found.step, "layers": layers}


def cache_facts(engine: Engine, stats: Stats) -> dict[str, Any]:
    """The cache as a whole."""
    shape = engine.runner.shape
    return {
        "active": stats.active,
        "reason": stats.reason,
        "policy": stats.policy,
        "n_layers": shape.n_layers,
        "n_experts": max(shape.n_experts, default=0),
        "n_slots": sum(shape.n_slots),
        "slot_bytes": shape.slot_bytes,
        "tokens": stats.tokens,
        "hits": stats.hits,
        "misses": stats.misses,
        "hit_rate": stats.hit_rate,
        "bytes_fetched": stats.bytes_fetched,
        "fetch_ms": stats.fetch_ms,
        "prefetched": asdict(stats.prefetched) if stats.prefetched else None,
    }


@router.post("/v1/experts/cache")
async def resize(body: ResizeRequest, serving: ServingOf) -> dict[str, Any]:
    """Give the expert cache another size between two steps; requests that run go on, and their answers stay the same."""
    CacheSize.parse(body.size)  # refused before anything waits for it
    engine = serving.engine

    def change() -> Stats:
        engine.resize_cache(body.size)
        return engine.stats()

    return cache_facts(engine, await serving.call(change))
