"""Every variant of a kernel that requests need compiles while loading: launches are noted instead of run, with what Triton would specialise on."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

import hotset.data
from hotset.config import SamplingParams
from hotset.engine.device import DeviceModel, DeviceRunner
from hotset.engine.loading import DEMO, LoadOptions, Source
from hotset.engine.runner import Drawing
from hotset.experts.bank import ExpertBank
from hotset.experts.cache import ExpertCache
from hotset.experts.policy import Policy
from hotset.gguf import open_gguf
from hotset.model import model_config
from hotset.model.device_place import DevicePlace
from hotset.model.device_support import prompts_in_chunks
from hotset.model.experts import expert_layouts
from hotset.model.loading import load_weights, resolved
from hotset.model.tensors import Tensors

N_CTX, CHUNK_ROWS = 512, 256
# Plain; sinks and windows; latents; short convolutions; delta nets; float inputs.
NAMES = ("demo", "gpt-oss", "deepseek2-v3", "lfm2moe", "qwen3next", "qwen3moe")
LENGTHS = (1, 2, 5, 8, 9, 10, 16, 17, 31, 32, 33, 48, 64, 100, 255, 256, 500)
DRAWS = (
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.1},
    {"temperature": 0.8, "repeat_penalty": 1.1, "logit_bias": {3: 1.0}},
)


def variant(kernel: InterpretedFunction, args: tuple, kwargs: dict) -> tuple:
    """What Triton compiles anew for: constants, types, integers of 1 and multiples of 16, pointers to multiples of 16 bytes."""
    free = set(kernel.kwargs.get("do_not_specialize") or ())
    anywhere = free | set(kernel.kwargs.get("do_not_specialize_on_alignment") or ())
    given = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    key = []
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            found = value.dtype, name in anywhere or value.data_ptr() % 16 == 0
        elif (
            isinstance(value, int)
            and name in kernel.arg_names
            and "constexpr" not in str(kernel.fn.__annotations__[name])
        ):
            found = -(2**31) <= value < 2**31, name in free or (value == 1, value % 16 == 0)
        elif isinstance(value, float):
            found = float
        else:
            found = str(value)
        key.append((name, found))
    return tuple(sorted(key, key=lambda pair: pair[0]))


@pytest.fixture
def launched(monkeypatch) -> dict[str, set]:
    """The variants of each kernel that were launched; nothing is computed."""
    found = defaultdict(set)

    def note(self, *args, grid, warmup=False, **kwargs) -> None:
        del grid, warmup
        found[f"{self.fn.__module__}.{self.fn.__name__}"].add(variant(self, args, kwargs))

    monkeypatch.setattr(InterpretedFunction, "run", note)
    return found


@pytest.fixture(params=NAMES)
def runner(request, launched) -> DeviceRunner:
    if request.param == "demo":
        path = Path(next(iter(hotset.data.__path__))) / DEMO
    else:
        path = request.getfixturevalue("shared") / "golden" / "tiny" / f"{request.param}.gguf"
    file = open_gguf(path)
    tensors = Tensors(file)
    config = resolved(model_config(file.metadata), tensors, N_CTX)
    source = Source(file, config, tensors, expert_layouts(tensors, config), N_CTX, LoadOptions(), lambda *_: None)
    bank = ExpertBank(source.spans, config.n_experts)
    weights = load_weights(tensors, config, source.spans, DevicePlace("cpu"))
    cache = ExpertCache(source.shape((2,) * len(source.spans)), Policy.parse("lrfu:16"), bank.base, "cpu")
    chunk_rows = CHUNK_ROWS if prompts_in_chunks(config, tensors) else 0
    model = DeviceModel(config, weights, bank, cache, torch.device("cpu"))
    made = DeviceRunner(model, N_CTX, chunk_rows=chunk_rows, n_seqs=4)
    made.compile()
    made.warm_up()
    return made


def test_no_request_compiles_a_kernel(runner, launched):
    known = {name: set(variants) for name, variants in launched.items()}

    def new_since(what: str) -> list[str]:
        return [f"{what}: {name}" for name, variants in launched.items() if variants - known.get(name, set())]

    found = []
    for n in LENGTHS:
        runner.logits([5] * n, [n - 1], "fast", stepwise=False)
        found += new_since(f"a prompt of {n}")
    sequences = runner.sequences(4, N_CTX)
    for n, draw in enumerate(DRAWS):
        sequences.start(n, Drawing(SamplingParams(**draw), n, frozenset()))
        sequences.feed(n, [5] * (30 * n + 1), 30 * n + 1)
        found += new_since(f"sequence {n}")
    session = runner.session(N_CTX)
    for draw in DRAWS:
        session.start(SamplingParams(**draw), seed=0, end_ids=frozenset())
        session.keep(0)
        session.feed([5] * 20)
        found += new_since(f"a session that draws with {draw}")
    assert not found
