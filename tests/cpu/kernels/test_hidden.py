"""Hidden values of feed-forward networks against PyTorch: every kind, with limits, row gates, padding and no gate at all."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from hotset.host.activation import hidden_values as host_hidden_values
from hotset.kernels.activation import Activation
from hotset.kernels.hidden import KINDS, hidden_values, reference


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "limit"), [(40, 0.0), (96, 1.5)])
@pytest.mark.parametrize("has_gate", [True, False])
def test_hidden_values_are_those_of_pytorch(kind, width, limit, has_gate):
    torch.manual_seed(0)
    gate, up = torch.randn(2, 3, width + 16).mul(3)
    row_gate = torch.randn(3, 16) if has_gate else None
    gate = gate if has_gate else None
    limit = limit if has_gate else 0.0
    out = Activation.empty(3, width, "cpu", quantised=True)
    hidden_values(gate, up, row_gate, out, kind, limit)
    expected = reference(None if gate is None else gate[:, :width], up[:, :width], row_gate, kind, limit)
    torch.testing.assert_close(out.f32, expected.f32, rtol=1e-5, atol=1e-5)
    assert (out.q is None) == (width % 32 != 0)
    if out.q is not None:
        assert (out.q.int() - expected.q.int()).abs().max() <= 1
        torch.testing.assert_close(out.d, expected.d, rtol=1e-4, atol=1e-7)


def by_kernel(gate, up, kind, limit):
    out = Activation.empty(*gate.shape, "cpu", quantised=False)
    hidden_values(gate, up, None, out, kind, limit)
    return out.f32


def by_reference(gate, up, kind, limit):
    return reference(gate, up, None, kind, limit).f32


def on_host(gate, up, kind, limit):
    found = host_hidden_values(gate.numpy(), up.numpy(), gate.shape[1], KINDS[kind], gated=True, limit=limit)
    return torch.from_numpy(found)


@pytest.mark.parametrize("values", [by_kernel, by_reference, on_host])
@pytest.mark.parametrize(
    ("kind", "limit", "gate", "up", "expected"),
    [
        ("swiglu oai", 7.0, 10, -9, -41.9997),
        ("swiglu oai", 7.0, -10, 9, -10 * 8 / (1 + 24_587_660)),
        ("silu", 0.0, 10, -9, -89.9959),
        ("silu", 0.0, 300, 300, 90_000),
        ("silu", 7.0, 300, 300, 48.9554),
    ],
)
def test_golden_hidden_values(values, kind, limit, gate, up, expected):
    found = values(torch.full((1, 40), float(gate)), torch.full((1, 40), float(up)), kind, limit)
    torch.testing.assert_close(found, torch.full((1, 40), float(expected)), rtol=2e-6, atol=1e-7)
