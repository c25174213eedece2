from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from hotset.kernels.embed import embed
from hotset.quant.formats import FORMATS


@pytest.mark.parametrize("fmt", [f.name for f in FORMATS.values()])
def test_rows_of_every_format_have_the_bits_of_the_reference(matrix, fmt):
    weights = matrix(fmt, 37, 768)
    tokens = torch.tensor([36, 0, 17, 17], dtype=torch.int32)
    out = torch.full((4, 768), float("nan"))
    embed(tokens, weights, out)
    expected = torch.from_numpy(weights.layout.dequantize(weights.data.numpy()))[tokens.long()]
    assert torch.equal(out.view(torch.int32), expected.view(torch.int32))


def test_columns_that_fill_no_block_and_a_wider_output(matrix):
    weights = matrix("Q8_0", 5, 96)
    wide = torch.full((2, 100), float("nan"))
    embed(torch.tensor([4, 1], dtype=torch.int32), weights, wide[:, :96])
    assert torch.equal(wide[:, :96], torch.from_numpy(weights.layout.dequantize(weights.data.numpy()))[[4, 1]])
    assert wide[:, 96:].isnan().all()
