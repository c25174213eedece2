"""Every format of the table against the gguf package: same bits from GGUF blocks and from planes, and the way back loses nothing."""

import gguf
import numpy as np
import pytest

from hotset.errors import InputError
from hotset.quant.formats import FORMATS
from hotset.quant.layout import GROUP, MatrixLayout, SpanLayout

ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)


def random_blocks(fmt, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """Random bytes; float16 and float32 fields are kept finite, since NaN bits have no single value to compare."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows, cols // fmt.block, fmt.block_bytes), dtype=np.uint8)
    fields = fmt.fields_of_blocks(raw)
    for p in fmt.planes:
        if p.dtype in ("<f2", "<f4"):
            fields[p.name] = rng.normal(0, 0.1, fields[p.name].shape).astype(p.dtype)
        elif fmt.name == "BF16":
            fields[p.name] = (rng.normal(0, 0.1, fields[p.name].shape).astype("<f4").view("<u4") >> 16).astype("<u2")
    return fmt.blocks_of_fields(fields).reshape(rows, -1)


def oracle(fmt, blocks: np.ndarray) -> np.ndarray:
    return gguf.dequantize(blocks, gguf.GGMLQuantizationType(fmt.ggml_type))


@ALL
def test_sizes_are_those_of_ggml(fmt):
    assert (fmt.block, fmt.block_bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(fmt.ggml_type)]


@ALL
@pytest.mark.parametrize("rows", [1, 15, 16, 37])
def test_planes_give_the_bits_of_the_blocks(fmt, rows):
    layout = MatrixLayout(fmt, rows, 3 * 256)
    blocks = random_blocks(fmt, rows, layout.cols, seed=rows)
    planes = layout.from_blocks(blocks)
    expected = oracle(fmt, blocks)
    assert planes.size == layout.n_bytes
    assert np.array_equal(layout.dequantize(planes).view(np.uint32), expected.view(np.uint32))
    assert np.array_equal(layout.to_blocks(planes), blocks)


@ALL
def test_padded_rows_read_as_zero(fmt):
    layout = MatrixLayout(fmt, 3, 256)
    planes = layout.from_blocks(random_blocks(fmt, 3, 256))
    padded = MatrixLayout(fmt, GROUP, 256).dequantize(planes)
    assert not padded[3:].any()


@ALL
def test_planes_are_at_most_four_percent_larger_than_the_file(fmt):
    layout = MatrixLayout(fmt, 768, 2048)
    assert layout.n_bytes <= 1.04 * layout.rows * layout.row_bytes
    assert all(o % 16 == 0 for o in layout.offsets)


def test_columns_off_the_block_are_refused():
    with pytest.raises(InputError, match=r"704 .* Q4_K's block of 256"):
        MatrixLayout(FORMATS[12], 16, 704)


def test_spans_are_contiguous_and_padded():
    q4, q6 = FORMATS[12], FORMATS[14]
    span = SpanLayout(("gate", "up", "down"), (MatrixLayout(q4, 768, 2048),) * 2 + (MatrixLayout(q6, 2048, 768),))
    assert span.n_bytes % 256 == 0
    assert span.start("down") == 2 * span.matrix("up").n_bytes
    assert span.n_bytes == span.start("down") + span.matrix("down").n_bytes
