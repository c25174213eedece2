"""The GPU's decode kernels under Triton's interpreter, for one model of every kind of layer: near the CPU runner, at any placement and cut."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch

from hotset.engine.device import DeviceModel, DeviceRunner
from hotset.engine.host import HostModel, HostRunner
from hotset.engine.loading import LoadOptions, Source
from hotset.experts.bank import ExpertBank
from hotset.experts.cache import ExpertCache
from hotset.experts.host_cache import HostCache
from hotset.experts.policy import Policy
from hotset.gguf import open_gguf
from hotset.model import model_config
from hotset.model.device_place import DevicePlace
from hotset.model.experts import expert_layouts
from hotset.model.host_place import HostPlace
from hotset.model.loading import load_weights, resolved
from hotset.model.tensors import Tensors

N_CTX = 80
POLICY = Policy.parse("lru")
# Sinks and biases; GELU, dense beside experts; a weight on the input; latents; short convolutions; delta nets; raw router input.
NAMES = ("gpt-oss", "gemma4", "llama4", "deepseek2-v3", "lfm2moe", "qwen35moe", "smallthinker")


@pytest.fixture(params=NAMES)
def path(request, shared):
    return shared / "golden" / "tiny" / f"{request.param}.gguf"


def opened(path) -> Source:
    file = open_gguf(path)
    tensors = Tensors(file)
    config = resolved(model_config(file.metadata), tensors, N_CTX)
    return Source(file, config, tensors, expert_layouts(tensors, config), N_CTX, LoadOptions(), lambda *_: None)


def filled_bank(source: Source) -> ExpertBank:
    bank = ExpertBank(source.spans, source.config.n_experts)
    source.fill(bank)
    return bank


def device_logits(path, tokens, n_slots: int, chunk: int) -> np.ndarray:
    source = opened(path)
    bank, weights = filled_bank(source), load_weights(source.tensors, source.config, source.spans, DevicePlace("cpu"))
    cache = ExpertCache(source.shape((n_slots,) * len(source.spans)), POLICY, bank.base, "cpu", poison=True)
    runner = DeviceRunner(DeviceModel(source.config, weights, bank, cache, torch.device("cpu")), N_CTX)
    runner.chunk = chunk
    return runner.logits(tokens, range(len(tokens)), "fast", stepwise=False)


def host_logits(path, tokens) -> np.ndarray:
    source = opened(path)
    bank, weights = filled_bank(source), load_weights(source.tensors, source.config, source.spans, HostPlace())
    cache = HostCache(source.shape((1,) * len(source.spans)), POLICY)
    return HostRunner(HostModel(source.config, weights, bank, cache), 2).logits(
        tokens, range(len(tokens)), "fast", stepwise=False
    )


def test_logits_are_near_the_cpu_runner_and_no_bit_depends_on_placement_or_cut(path):
    tokens = [3, 77, 5]
    found = device_logits(path, tokens, n_slots=1, chunk=3)
    expected = host_logits(path, tokens)
    assert np.linalg.norm(found - expected) <= 2e-3 * np.linalg.norm(expected)
    other = device_logits(path, tokens, n_slots=8, chunk=1)
    assert np.array_equal(found.view(np.uint32), other.view(np.uint32))
