"""`hotset.load`: from a name or path to an engine on a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal

from hotset.checkpoint import is_checkpoint, open_model
from hotset.engine import hub
from hotset.engine.filling import Gauge, Reader, fill
from hotset.engine.hub_choice import PREFIX, HubName, looks_like_hub_name
from hotset.engine.memory import check_host_room, checked_ctx, counted_slots, host_plan, kv_bytes, with_slots
from hotset.engine.warm_start import RING_STEPS, WarmStart
from hotset.errors import FileError, InputError, UnsupportedError
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheShape, CacheSize, parse_bytes
from hotset.host.threads import checked_threads
from hotset.model import model_config
from hotset.model.batch import MAX_ROWS
from hotset.model.device_support import missing_on_device
from hotset.model.experts import dense_bytes, expert_blocks, expert_layouts, expert_tensors, layer_tensors
from hotset.model.kv import KVTypes
from hotset.model.loading import load_weights, resolved
from hotset.model.tensors import Tensors

if TYPE_CHECKING:
    from hotset.checkpoint.file import ModelFile
    from hotset.engine.engine import Engine
    from hotset.engine.memory import MemoryPlan
    from hotset.engine.runner import Runner
    from hotset.experts.bank import ExpertBank
    from hotset.model.config import ModelConfig
    from hotset.quant.layout import Bytes, SpanLayout
    from hotset.text.chat import ChatTemplate
    from hotset.text.tokenizer import Tokenizer

DEMO = "demo-moe-Q4_K_M.gguf"
# What a model may hold unless asked for more: keys and values grow with it.
DEFAULT_CTX = 4096

Device = Literal["auto", "cuda", "cpu"]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class LoadOptions:
    """How to load; see `load`."""

    device: Device = "auto"
    expert_cache: str = "auto"
    policy: str = "lrfu:16"
    vram: str | int | None = None
    n_ctx: int | None = None
    threads: int | None = None
    pre: str | None = None
    record_steps: int = 0
    graph: bool = True
    prefetch: bool = True
    n_ubatch: int | None = None
    page_lock: str | int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    warm_start: bool = False
    slots_from_profile: bool = False
    n_parallel: int = 0

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cuda", "cpu"):
            raise InputError(f"device {self.device!r} is not one of auto, cuda, cpu")
        if self.n_ctx is not None:
            checked_ctx(self.n_ctx)
        if self.n_ubatch is not None and not (type(self.n_ubatch) is int and 16 <= self.n_ubatch <= 4096):
            raise InputError(f"n_ubatch (-ub) must be 16 to 4096 tokens, not {self.n_ubatch!r}")
        if isinstance(self.page_lock, int) and (isinstance(self.page_lock, bool) or self.page_lock < 0):
            raise InputError(
                f"page_lock must be a size such as 8GiB, bytes of 0 or more, or off, not {self.page_lock!r}"
            )
        if not (type(self.n_parallel) is int and 0 <= self.n_parallel <= MAX_ROWS):
            raise InputError(
                f"n_parallel (--parallel) must be 1 to {MAX_ROWS} requests at once, not {self.n_parallel!r}"
            )
        if not (type(self.record_steps) is int and self.record_steps >= 0):
            raise InputError(f"record_steps must be 0 or more, not {self.record_steps!r}")

    @property
    def kv_types(self) -> KVTypes:
        return KVTypes.parse(self.cache_type_k, self.cache_type_v)

    @property
    def ring_steps(self) -> int:
        """Steps whose picks the expert cache keeps."""
        return max(self.record_steps, RING_STEPS) if self.slots_from_profile else self.record_steps

    @property
    def size(self) -> CacheSize:
        return CacheSize.parse(self.expert_cache)

    @property
    def vram_bytes(self) -> int | None:
        if self.vram is None or isinstance(self.vram, int):
            return self.vram
        return parse_bytes(self.vram, "vram")

    @property
    def page_lock_bytes(self) -> int | None:
        """How much of the experts may be page-locked, None for all of them."""
        if self.page_lock is None or isinstance(self.page_lock, int):
            return self.page_lock
        return 0 if self.page_lock.strip().lower() == "off" else parse_bytes(self.page_lock, "page_lock")


@dataclass(frozen=True, eq=False)
class Source:
    """An opened and checked file: everything that loading onto a device starts from."""

    file: ModelFile
    config: ModelConfig
    tensors: Tensors
    spans: tuple[SpanLayout, ...]
    n_ctx: int
    options: LoadOptions
    progress: Progress
    warm_start: WarmStart | None = None

    def dealt(self, plan: MemoryPlan) -> MemoryPlan:
        """The plan with slots per layer as earlier runs would have them, where that was asked for."""
        if self.warm_start is None or not self.options.slots_from_profile:
            return plan
        return with_slots(
            plan, self.warm_start.deal(plan.n_slots, [s.n_bytes for s in self.spans]), self.spans, self.config
        )

    @property
    def dense_bytes(self) -> int:
        """File bytes of everything that is read and no expert."""
        return dense_bytes(self.file, self.config)

    def shape(self, n_slots: tuple[int, ...]) -> CacheShape:
        span_bytes = tuple(s.n_bytes for s in self.spans)
        return CacheShape(
            span_bytes, (self.config.n_experts,) * len(self.spans), n_slots, self.config.n_picks, MAX_ROWS
        )

    def fill(self, bank: ExpertBank, gauge: Gauge | None = None) -> None:
        """The experts into the bank, layer by layer; others may follow on the gauge."""
        file, config = self.file, self.config

        def blocks(layer: int, role: str) -> Bytes:
            if role == self.spans[layer].roles[0]:
                for name in layer_tensors(file, config, layer):
                    file.read_ahead(name)
            return expert_blocks(file, config, layer, role)

        def let_go(layer: int) -> None:
            for name in layer_tensors(file, config, layer):
                file.let_go(name)

        whole = sum(file.tensors[name].n_bytes for name in expert_tensors(file, config))
        fill(
            bank,
            Reader(blocks, let_go),
            checked_threads(self.options.threads),
            gauge or Gauge(),
            lambda done: self.progress("experts", done, whole),
        )


def no_progress(_stage: str, _done: int, _total: int) -> None:
    pass


def resolve(model: str | os.PathLike[str], progress: Progress = no_progress) -> Path:
    """The file of a model's name: "demo", a path, or a model of Hugging Face (fetched where it is not in the cache)."""
    if model == "demo":
        return Path(__file__).resolve().parents[1] / "data" / DEMO
    if isinstance(model, str) and model.startswith(PREFIX):
        return hub.fetch(HubName.parse(model.removeprefix(PREFIX)), progress)
    path = Path(model).expanduser()
    if path.is_dir() and not is_checkpoint(path):
        raise FileError(
            path,
            "model",
            "is a folder",
            hint="name the .gguf file in it (for a split model any of its parts); checkpoints hold config.json and .safetensors",
        )
    if path.exists():
        return path
    if isinstance(model, str) and looks_like_hub_name(model):
        return hub.fetch(HubName.parse(model), progress)
    hint = 'give the path of a .gguf file, a model of Hugging Face as user/repo, or "demo" for the bundled model'
    raise FileError(path, "model", "there is no such file", hint=hint)


def load(
    model: str | os.PathLike[str],
    *,
    device: Device = "auto",
    expert_cache: str = "auto",
    policy: str = "lrfu:16",
    vram: str | int | None = None,
    n_ctx: int | None = None,
    threads: int | None = None,
    pre: str | None = None,
    record_steps: int = 0,
    graph: bool = True,
    prefetch: bool = True,
    n_ubatch: int | None = None,
    page_lock: str | int | None = None,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    warm_start: bool = False,
    slots_from_profile: bool = False,
    n_parallel: int = 0,
    progress: Progress = no_progress,
) -> Engine:
    """Load a model and make it ready.

    `model` is "demo", the path of a GGUF file (any part of a split one), the folder of a Hugging Face checkpoint, or a model of Hugging Face:
    "user/repo" or "user/repo:QUANT" (with "hf:" before it where a path has the same name). `device` "auto" takes the GPU where one can be used.
    `expert_cache` is its size: "6GiB", "25%" of each layer's experts, "16slots" per layer, "auto" or "off"; `policy` is lrfu:HALF_LIFE,
    product, lru, lfu or static. `vram` bounds all that is put on the GPU ("8GiB" or bytes). `n_ctx` is the context in tokens, `threads` the CPU
    threads (default: physical cores). `pre` overrides the tokenizer's name for splitting text. `record_steps` keeps the picks of so many
    last steps. `graph` False launches a GPU step's kernels one by one instead of as one captured graph. `prefetch` False brings no expert to
    the GPU before its layer has picked it. `n_ubatch` is how many tokens of a prompt the GPU computes at once (default: by VRAM, at most
    4,096). `cache_type_k` and `cache_type_v` say how keys and values are kept, "f16" or "q8_0" (about half the memory). `page_lock` is how
    much of the experts may be page-locked for the GPU to read ("8GiB", bytes, or "off"; default: all): what is not goes through a small
    buffer, slower and with the same results. `warm_start` fills the expert cache with what earlier runs of the model used most and keeps
    what this one uses (a small file in the cache directory); `slots_from_profile` deals slots to layers by what they picked; both change
    speed alone. `n_parallel` plans memory for so many sequences that step together, instead of for one session. `progress` is called with
    a stage, what is done and the whole; stages overlap, and their calls come from other threads, one at a time.

    Raises HotsetError: FileError (the file), PlacementError (memory), DeviceError (the GPU), InputError (an argument).
    """
    options = LoadOptions(
        device=device, expert_cache=expert_cache, policy=policy, vram=vram, n_ctx=n_ctx, threads=threads, pre=pre, record_steps=record_steps,
        graph=graph, prefetch=prefetch,
        n_ubatch=n_ubatch, page_lock=page_lock, cache_type_k=cache_type_k, cache_type_v=cache_type_v,
        warm_start=warm_start, slots_from_profile=slots_from_profile,
        n_parallel=n_parallel,
    )  # fmt: skip
    (
        Policy.parse(options.policy),
        options.size,
        options.vram_bytes,
        options.page_lock_bytes,
        options.kv_types,
    )  # all arguments are checked before a long load begins
    checked_threads(options.threads)
    file = open_model(resolve(model, progress))
    config = model_config(file.metadata)
    options.kv_types.check(config)
    tensors = Tensors(file)
    n_ctx = n_ctx or min(config.n_ctx_train, DEFAULT_CTX)
    config = resolved(config, tensors, n_ctx)
    spans, heat = expert_layouts(tensors, config), known_heat(file, config, options)
    source = Source(file, config, tensors, spans, n_ctx, options, one_at_a_time(progress), heat)
    chosen, notes = choose_device(options.device)
    if chosen == "cuda" and (missing := missing_on_device(config)):
        chosen, notes = "cpu", [*notes, without_gpu(source, missing)]
    return _load_cuda(source, notes) if chosen == "cuda" else _load_host(source, notes)


def one_at_a_time(progress: Progress) -> Progress:
    """The same for callers in several threads: reading, page-locking and compiling go on side by side."""
    lock = Lock()

    def report(stage: str, done: int, total: int) -> None:
        with lock:
            progress(stage, done, total)

    return report


def known_heat(file: ModelFile, config: ModelConfig, options: LoadOptions) -> WarmStart | None:
    """What earlier runs of the model left, where it is wanted and there are experts."""
    n_layers = len(config.expert_layers)
    if not n_layers or not (options.warm_start or options.slots_from_profile):
        return None
    return WarmStart(file.header_hash, n_layers, config.n_experts, config.n_picks)


def choose_device(wanted: Device) -> tuple[Literal["cuda", "cpu"], list[str]]:
    """The device to use, and what the user should be told of the choice."""
    if wanted == "cpu":
        return "cpu", []
    from hotset.engine.cuda import cuda_problem

    problem = cuda_problem()
    if problem is None:
        return "cuda", []
    if wanted == "cuda":
        raise problem
    return "cpu", [f"running on the CPU: {problem}"]


def without_gpu(source: Source, missing: list[str]) -> str:
    """What to tell of a model that the GPU kernels cannot run; UnsupportedError where the GPU was asked for."""
    what = ", ".join(missing)
    if source.options.device == "cuda":
        raise UnsupportedError(
            source.file.path,
            source.config.architecture,
            f"the GPU kernels do not know {what} yet",
            value=missing,
            hint="run with --device cpu",
        )
    return f"running on the CPU: the GPU kernels do not know {what} yet"


def _load_host(source: Source, notes: list[str]) -> Engine:
    from hotset.engine.host import HostModel, HostRunner
    from hotset.experts.bank import ExpertBank
    from hotset.experts.host_cache import HostCache
    from hotset.model.host_place import HostPlace

    config, options = source.config, source.options
    kv = kv_bytes(config, source.n_ctx, max(1, options.n_parallel), options.kv_types)
    check_host_room(source.n_ctx, kv)
    bank = ExpertBank(source.spans, config.n_experts)
    source.fill(bank)
    weights = load_weights(source.tensors, config, source.spans, HostPlace())
    n_slots = counted_slots(options.size, bank.span_bytes, (config.n_experts,) * len(source.spans))
    plan = source.dealt(host_plan(config, source.spans, source.dense_bytes, kv, n_slots, str(options.kv_types)))
    cache = HostCache(source.shape(plan.n_slots), Policy.parse(options.policy), ring_steps=options.ring_steps)
    runner = HostRunner(HostModel(config, weights, bank, cache), checked_threads(options.threads), options.kv_types)
    source.progress("kernels", 0, 1)
    runner.warm_up()
    source.progress("kernels", 1, 1)
    return _engine(source, runner, plan, notes)


def _load_cuda(source: Source, notes: list[str]) -> Engine:
    from hotset.engine.device_loading import load_cuda, prompt_notes

    runner, plan, more = load_cuda(source)
    return _engine(source, runner, plan, [*notes, *prompt_notes(runner), *more])


def _engine(source: Source, runner: Runner, plan: MemoryPlan, notes: list[str]) -> Engine:
    from hotset.engine.engine import Engine

    tokenizer, template = text_of(source)
    warm = source.warm_start
    if warm is not None and source.options.warm_start:
        warm.fill(runner.cache)
    if source.n_ctx > source.config.n_ctx_train:
        notes = [
            *notes,
            f"the context of {source.n_ctx} is longer than the {source.config.n_ctx_train} the model was made for",
        ]
    return Engine(
        runner, source.config, tokenizer, n_ctx=source.n_ctx, template=template, memory=plan, notes=notes, warm_start=warm,
    )  # fmt: skip


def text_of(source: Source) -> tuple[Tokenizer, ChatTemplate | None]:
    """The tokenizer, and the chat template where the file has one."""
    from hotset.text.chat import ChatTemplate, default_template
    from hotset.text.tokenizer import Tokenizer

    metadata = source.file.metadata
    tokenizer = Tokenizer.from_metadata(metadata, path=str(source.file.path), pre=source.options.pre)
    text = default_template(metadata)
    return tokenizer, None if text is None else ChatTemplate.for_tokenizer(text, tokenizer)
