"""Loading a model for a command: the first line on the expert cache, what was chosen and why, and the memory table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hotset.bench.units import size_text
from hotset.cli.output import held_warnings, loading_bar, printable, say, show_table

if TYPE_CHECKING:
    from hotset.engine.engine import Engine
    from hotset.engine.loading import Device, Progress
    from hotset.engine.memory import MemoryPlan
    from hotset.engine.warm_start import WarmStart
    from hotset.model.kv import KVTypes


@dataclass(frozen=True)
class Choices:
    """What the user chose; None (or "auto") leaves it to hotset. `arms` names the expert caches that are made once the model is loaded."""

    model: str
    device: str = "auto"
    expert_cache: str = "auto"
    policy: str = "lrfu:16"
    vram: str | None = None
    n_ctx: int | None = None
    threads: int | None = None
    pre: str | None = None
    n_ubatch: int | None = None
    graph: bool = True
    prefetch: bool = True
    page_lock: str | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    n_parallel: int = 0
    why_n_ctx: str = "as asked"
    arms: str = ""
    record_steps: int = 0
    warm_start: bool = False
    slots_from_profile: bool = False

    @property
    def kv_types(self) -> KVTypes:
        from hotset.model.kv import KVTypes

        return KVTypes.parse(self.cache_type_k, self.cache_type_v)

    @property
    def name(self) -> str:
        """The model's name without its folder and ending."""
        return Path(self.model).name.removesuffix(".gguf")


def open_engine(choices: Choices, tell: Progress = lambda _stage, _done, _total: None) -> Engine:
    """Load, then say what was loaded and how; the first line tells where the expert cache is inactive. `tell` hears of the progress too."""
    from hotset.engine.loading import load

    with held_warnings():
        with loading_bar() as show:

            def progress(stage: str, done: int, total: int) -> None:
                show(stage, done, total)
                tell(stage, done, total)

            engine = load(
                choices.model,
                device=cast("Device", choices.device),
                expert_cache=choices.expert_cache,
                policy=choices.policy,
                vram=choices.vram,
                n_ctx=choices.n_ctx,
                threads=choices.threads,
                pre=choices.pre,
                n_ubatch=choices.n_ubatch,
                graph=choices.graph,
                prefetch=choices.prefetch,
                n_parallel=choices.n_parallel,
                record_steps=choices.record_steps,
                page_lock=choices.page_lock,
                cache_type_k=choices.cache_type_k,
                cache_type_v=choices.cache_type_v,
                warm_start=choices.warm_start,
                slots_from_profile=choices.slots_from_profile,
                progress=progress,
            )
        say(f"expert caches, measured side by side: {choices.arms}" if choices.arms else cache_line(engine))
    for note in engine.notes:
        say(f"note: {printable(note)}")
    show_table("settings", ("", "", "why"), [*settings(engine, choices)])
    show_table("memory", ("what", "where", "size", "why"), memory_rows(engine.memory), right=(2,))
    return engine


def cache_line(engine: Engine) -> str:
    """Whether the expert cache works, and if not, why."""
    stats = engine.stats()
    if not stats.active:
        return f"expert cache inactive: {stats.reason}"
    return f"expert cache active: {slots_text(engine)}, policy {stats.policy}"


def slots_text(engine: Engine) -> str:
    from hotset.engine.memory import slots_note

    return slots_note(engine.memory.n_slots, engine.config.n_experts)


def settings(engine: Engine, choices: Choices) -> Iterator[tuple[str, str, str]]:
    """Every setting in force with the reason for it."""
    config = engine.config
    experts = f"{config.n_experts} experts, {config.n_picks} picked" if config.n_experts else "no experts"
    shape = f"{config.n_layers} layers, {experts}"
    yield "model", config.name, f"{config.architecture}: {shape}"
    yield "device", engine.device, asked(choices.device != "auto") or device_reason(engine)
    if engine.device == "cpu":
        yield "threads", *threads(choices)
    yield "KV cache", *kv_types(choices)
    yield "context", f"{engine.n_ctx:,} tokens", context_reason(engine, choices)
    if choices.arms:
        return
    yield "expert cache", slots_text(engine), asked(choices.expert_cache != "auto") or cache_reason(engine)
    if engine.warm_start is not None:
        yield "warm start", *warm_start_texts(engine.warm_start, choices)
    yield "policy", *policy_texts(engine)
    if engine.device == "cuda" and engine.runner.shape.n_layers:
        yield "prefetch", *prefetch_texts(engine, choices)


def policy_texts(engine: Engine) -> tuple[str, str]:
    """The policy and why."""
    from hotset.experts.policy import Policy

    policy = Policy.parse(engine.stats().policy)
    why = "keeps what was picked often and lately, which replays of real routing favour"
    return str(policy), why if policy == Policy() else f"as asked: {policy.kind.summary}"


def prefetch_texts(engine: Engine, choices: Choices) -> tuple[str, str]:
    """Whether experts come ahead of their layer's picks, and why."""
    if not choices.prefetch:
        return "off", "as asked"
    if engine.stats().prefetched is None:
        return "off", "no layer's experts are read by the GPU alone"
    return "on", "likely misses of the next layer come while the bus is idle; off with --no-prefetch"


def asked(value: object) -> str:
    return "as asked" if value else ""


def device_reason(engine: Engine) -> str:
    return "a GPU is there and can be used" if engine.device == "cuda" else "no GPU can be used"


def threads(choices: Choices) -> tuple[str, str]:
    from hotset.host.threads import checked_threads

    return str(checked_threads(choices.threads)), asked(choices.threads) or "physical cores that this process may use"


def kv_types(choices: Choices) -> tuple[str, str]:
    from hotset.model.kv import DEFAULT, KVTypes

    types = KVTypes.parse(choices.cache_type_k, choices.cache_type_v)
    return str(types), asked(
        types != DEFAULT
    ) or "what attention computes with; -ctk q8_0 -ctv q8_0 takes half the memory"


def context_reason(engine: Engine, choices: Choices) -> str:
    made_for = engine.config.n_ctx_train
    if choices.n_ctx is not None:
        return choices.why_n_ctx
    if engine.n_ctx == made_for:
        return "all that the model was made for"
    return f"keeps the KV cache small; the model was made for {made_for:,}: raise with --ctx-size"


def warm_start_texts(warm: WarmStart, choices: Choices) -> tuple[str, str]:
    """What the expert cache begins with, and why."""
    answers = "1 answer" if warm.began_with == 1 else f"{warm.began_with:,} answers"
    samples = f"{answers} of earlier runs" if warm.began_with else "no earlier run of this model is known"
    dealt = "slots dealt to layers by earlier picks; " if warm.dealt else ""
    if not choices.warm_start:
        return "off", f"{dealt}as asked"
    return f"{warm.filled:,} slots filled", f"{dealt}{samples}; off with --no-warm-start"


def cache_reason(engine: Engine) -> str:
    if engine.device == "cpu":
        return "counted only: about what a small GPU would hold of a large model"
    return "what VRAM is left after weights, KV cache, scratch and reserve"


def memory_rows(plan: MemoryPlan) -> list[tuple[str, ...]]:
    """The memory table, with a total for each place."""
    rows: list[tuple[str, ...]] = [(r.name, r.where, size_text(r.n_bytes), r.note) for r in plan.rows]
    rows.append(("total", "host", size_text(plan.total("host")), ""))
    if plan.budget is not None:
        rows.append(("total", "gpu", size_text(plan.total("gpu")), f"of {size_text(plan.budget)} allowed"))
    if plan.usage is not None:
        rows.append(("in use", "gpu", size_text(plan.usage.driver), "as the driver counts, without the reserve"))
    return rows


def engine_facts(engine: Engine, choices: Choices) -> dict[str, Any]:
    """The same for `--json`."""
    return {
        "model": choices.model,
        "name": engine.config.name,
        "architecture": engine.config.architecture,
        "device": engine.device,
        "threads": int(threads(choices)[0]),
        "n_ctx": engine.n_ctx,
        "notes": list(engine.notes),
        "memory": [{"name": r.name, "where": r.where, "bytes": r.n_bytes, "note": r.note} for r in engine.memory.rows],
        "n_slots": list(engine.memory.n_slots),
        "gpu_in_use": engine.memory.usage.driver if engine.memory.usage else None,
    }
