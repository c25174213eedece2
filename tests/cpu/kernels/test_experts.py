"""The expert step in Triton's interpreter: spans read at their addresses, formats of all kinds, absent experts, large values."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch

from hotset.kernels.activation import Activation, quantise
from hotset.kernels.experts import ExpertBuffers, ExpertExtras, combine, down, expert_step, gate_up
from hotset.kernels.hidden import reference as hidden_reference
from hotset.quant.layout import SpanLayout

pytestmark = pytest.mark.filterwarnings(
    "ignore:overflow:RuntimeWarning"
)  # NumPy's, where exp(-gate) is infinite and silu 0
ROLES = ("gate", "up", "down")
D = 256


class Experts:
    """A few experts, each in a span of its own somewhere in memory, with their dequantised matrices."""

    def __init__(self, matrix, names: tuple[str, str, str], n: int, d_ff: int, d_model: int = D) -> None:
        shapes = ((d_ff, d_model), (d_ff, d_model), (d_model, d_ff))
        self.spans, self.values = [], []
        for e in range(n):
            made = [
                matrix(name, *shape, seed=10 * e + i) for i, (name, shape) in enumerate(zip(names, shapes, strict=True))
            ]
            self.layout = SpanLayout(ROLES, tuple(w.layout for w in made))
            self.spans.append(torch.zeros(self.layout.n_bytes, dtype=torch.uint8))
            for role, w in zip(ROLES, made, strict=True):
                start = self.layout.start(role)
                self.spans[e][start : start + w.layout.n_bytes] = w.data
            self.values.append([torch.from_numpy(w.layout.dequantize(w.data.numpy())).double() for w in made])

    def address(self, picks: list[int]) -> torch.Tensor:
        return torch.tensor([self.spans[e].data_ptr() if e >= 0 else 0 for e in picks], dtype=torch.int64)

    def expected(self, x: torch.Tensor, picks: list[int], weights: torch.Tensor) -> torch.Tensor:
        """Plain float64; picks and weights row by row, -1 for none."""
        out = torch.zeros(len(x), self.values[0][2].shape[0], dtype=torch.float64)
        k = len(picks) // len(x)
        for p, e in enumerate(picks):
            if e >= 0:
                gate, up, down = self.values[e]
                row = x[p // k].double()
                hidden = torch.nn.functional.silu(gate @ row) * (up @ row)
                out[p // k] += weights[p].double() * (down @ hidden)
        return out


def activation(m: int, cols: int, *, quantised: bool, seed: int = 0) -> Activation:
    x = Activation.empty(m, cols, "cpu", quantised=quantised)
    x.f32.copy_(torch.from_numpy(np.random.default_rng(seed).normal(0, 1, (m, cols)).astype(np.float32)))
    quantise(x)
    return x


def poisoned_buffers(layout: SpanLayout, n: int, *, quantised: bool) -> ExpertBuffers:
    buffers = ExpertBuffers.empty(layout, n, "cpu", quantised=quantised)
    for t in (*buffers.hidden.tensors, buffers.z):
        if t is not None:
            t.fill_(torch.nan if t.is_floating_point() else 99)
    return buffers


def run(experts: Experts, x: Activation, picks: list[int], weights: torch.Tensor) -> torch.Tensor:
    buffers = poisoned_buffers(experts.layout, len(picks), quantised=x.q is not None)
    out = torch.zeros(len(x.f32), experts.layout.matrix("down").rows)
    expert_step(x, experts.address(picks), weights, experts.layout, buffers, out)
    return out


def relative_rms(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("quantised", [False, True], ids=["reference", "fast"])
@pytest.mark.parametrize(
    ("names", "d_ff"),
    [
        (("Q4_K", "Q4_K", "Q6_K"), 256),
        (("Q5_K", "Q6_K", "Q5_0"), 96),
        (("Q4_K", "F16", "Q8_0"), 64),
        (("Q8_0", "BF16", "Q4_0"), 32),
        (("F16", "Q4_0", "F32"), 60),
        (("MXFP4", "MXFP4", "MXFP4"), 32),
        (("IQ2_XS", "Q3_K", "NVFP4"), 64),
    ],
    ids=lambda p: "-".join(p) if isinstance(p, tuple) else str(p),
)
def test_the_step_is_that_of_the_dequantised_experts(names, d_ff, quantised, matrix):
    experts = Experts(matrix, names, 2, d_ff)
    x = activation(1, D, quantised=quantised)
    weights = torch.tensor([0.7, 0.3])
    got = run(experts, x, [1, 0], weights)
    assert relative_rms(got, experts.expected(x.f32, [1, 0], weights)) < (3e-2 if quantised else 1e-5)


@pytest.mark.parametrize("quantised", [False, True], ids=["reference", "fast"])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(quantised, matrix):
    experts = Experts(matrix, ("Q4_K", "Q4_K", "Q8_0"), 3, 32)
    x = activation(2, D, quantised=quantised)
    picks, weights = [0, 1, 2, 1], torch.tensor([0.5, 0.5, 0.9, 0.1])
    together = run(experts, x, picks, weights)
    for m in range(2):
        alone = Activation(*(None if t is None else t[m : m + 1] for t in x.tensors))
        mine = slice(2 * m, 2 * m + 2)
        assert torch.equal(run(experts, alone, picks[mine], weights[mine])[0], together[m])


def test_where_a_span_lies_changes_no_bit(matrix):
    experts = Experts(matrix, ("Q4_K", "Q4_K", "Q6_K"), 2, 256)
    x = activation(1, D, quantised=True)
    weights = torch.tensor([0.5, 0.5])
    before = run(experts, x, [0, 1], weights)
    experts.spans = [s.clone() for s in reversed(experts.spans)]
    assert torch.equal(run(experts, x, [1, 0], weights), before)


def test_address_zero_adds_nothing_and_reads_nothing(matrix):
    experts = Experts(matrix, ("Q4_0", "Q4_0", "Q4_0"), 1, 32)
    x = activation(2, D, quantised=True)
    x.f32[1] = torch.nan
    weights = torch.tensor([0.5, 0.5, torch.nan, torch.nan])
    out = run(experts, x, [0, -1, -1, -1], weights)
    assert not out[1].any()
    assert relative_rms(out[:1], experts.expected(x.f32[:1], [0, -1], weights[:2])) < 2e-2


def test_the_hidden_product_may_pass_float16(matrix):
    experts = Experts(matrix, ("F32", "F32", "F32"), 1, 32, d_model=32)
    layout = experts.layout
    for role, value in (("gate", 300), ("up", 300), ("down", 1)):
        start = layout.start(role)
        part = experts.spans[0][start : start + layout.matrix(role).n_bytes].numpy()
        layout.matrix(role).plane(part, 0)[...] = value / 32
    for quantised in (False, True):
        x = Activation.empty(1, 32, "cpu", quantised=quantised)
        x.f32.fill_(1)
        quantise(x)
        assert torch.equal(run(experts, x, [0], torch.ones(1)), torch.full((1, 32), 90_000.0))


def test_picks_are_summed_in_their_order_on_top_of_what_is_there():
    z = torch.tensor([[1e8], [1.0], [-1e8]]).expand(3, 300).contiguous()
    out = torch.full((1, 300), 2.0)
    combine(z, torch.ones(3), torch.ones(3, dtype=torch.int64), out)
    total = ((np.float32(2) + np.float32(1e8)) + np.float32(1)) - np.float32(1e8)
    assert torch.equal(out, torch.full((1, 300), float(total)))


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize(("kind", "limit", "on_input"), [("swiglu oai", 1.5, False), ("gelu", 0.0, True)])
def test_biases_scales_and_weights_on_the_input_are_the_experts_own(matrix, quantised, kind, limit, on_input):
    names = ("Q4_K", "Q8_0", "F32")
    experts, rng = Experts(matrix, names, 3, 64), np.random.default_rng(5)

    def random(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(0, 1, shape).astype(np.float32))

    picks, weights = [2, 0, -1, 1], torch.rand(4)
    extras = ExpertExtras(
        kind=kind, limit=limit, picks=torch.tensor([2, 0, 1, 1], dtype=torch.int32), gate_bias=random(3, 64), up_bias=random(3, 64),
        down_bias=random(3, D), gate_scale=random(3), up_scale=random(3), down_scale=random(3), input_weight=weights if on_input else None,
    )  # fmt: skip
    x, address = activation(2, D, quantised=quantised), experts.address(picks)
    buffers = poisoned_buffers(experts.layout, 4, quantised=quantised)
    gate_up(x, address, experts.layout, buffers.hidden, extras=extras)
    down(buffers.hidden, address, experts.layout, buffers.z, extras=extras)
    out = torch.zeros(2, D)
    combine(buffers.z, None if on_input else weights, address, out)
    expected = torch.zeros(2, D, dtype=torch.float64)
    for p, e in enumerate(picks):
        if e >= 0:
            row = x.f32[p // 2].double() * (weights[p].double() if on_input else 1)
            gate, up, last = experts.values[e]
            g = extras.gate_scale[e] * (gate @ row) + extras.gate_bias[e]
            u = extras.up_scale[e] * (up @ row) + extras.up_bias[e]
            hidden = hidden_reference(g[None].float(), u[None].float(), None, kind, limit).f32[0].double()
            z = extras.down_scale[e] * (last @ hidden) + extras.down_bias[e]
            expected[p // 2] += z if on_input else weights[p] * z
    assert relative_rms(out, expected) < (2e-2 if quantised else 1e-5)
