"""Hidden values of feed-forward networks against PyTorch: every kind, with limits, row gates, padding and no gate at all."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

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
