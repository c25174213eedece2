"""GGUF blocks to planes: byte for byte what MatrixLayout.from_blocks gives, and nothing beside it."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.host.rearrange import aligned_bytes, rearrange, to_planes
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout

ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
CANARY = 0xA5


def any_bytes(layout: MatrixLayout, n_items: int = 1) -> np.ndarray:
    """Bytes of every kind, NaN patterns among them."""
    return np.random.default_rng(layout.rows).integers(0, 256, (n_items, layout.rows, layout.row_bytes), np.uint8)


@ALL
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 37])
@pytest.mark.parametrize("blocks", [1, 3])
def test_planes_are_those_of_the_plain_twin(fmt, rows, blocks):
    layout = MatrixLayout(fmt, rows, blocks * fmt.block)
    raw = any_bytes(layout)
    planes = to_planes(layout, raw.reshape(-1))
    assert np.array_equal(planes, layout.from_blocks(raw))
    assert planes.ctypes.data % 64 == 0
    assert np.array_equal(layout.to_blocks(planes), raw[0])


@ALL
def test_experts_go_where_their_spans_are_and_nowhere_else(fmt):
    layout = MatrixLayout(fmt, 21, 2 * fmt.block)
    raw = any_bytes(layout, n_items=3)
    stride, before = layout.n_bytes + 192, 64
    target = aligned_bytes(before + 3 * stride)
    target[:] = CANARY
    rearrange(layout, raw.reshape(-1), target.ctypes.data + before, n_items=3, target_stride=stride)
    for i in range(3):
        start = before + i * stride
        assert np.array_equal(target[start : start + layout.n_bytes], layout.from_blocks(raw[i]))
        target[start : start + layout.n_bytes] = CANARY
    assert (target == CANARY).all()


@pytest.mark.parametrize("wrong", ["short", "long", "strided"])
def test_bytes_that_are_no_whole_matrix_are_refused(wrong):
    layout = MatrixLayout(FORMATS[8], 4, 64)
    raw = any_bytes(layout).reshape(-1)
    blocks = {"short": raw[:-1], "long": np.append(raw, raw[:1]), "strided": np.repeat(raw, 2)[::2]}[wrong]
    with pytest.raises(ValueError, match="4 rows of 68 bytes"):
        to_planes(layout, blocks)
