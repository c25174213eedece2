"""Every format of the table against the gguf package: same bits from GGUF blocks and from planes, and the way back loses nothing."""

import gguf
import numpy as np
import pytest

from hotset.errors import InputError
from hotset.quant.formats import FORMATS
from hotset.quant.layout import GROUP, MatrixLayout, SpanLayout
from hotset.quant.random import put_scales, random_blocks
from samples import BY_NAME

ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)


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


@ALL
def test_any_bytes_survive_the_way_there_and_back(fmt):
    layout = MatrixLayout(fmt, 37, 2 * fmt.block)
    raw = np.random.default_rng(1).integers(0, 256, (37, layout.row_bytes), np.uint8)  # NaN patterns among them
    assert np.array_equal(layout.to_blocks(layout.from_blocks(raw)), raw)


@ALL
@pytest.mark.parametrize("byte", [0x00, 0x80, 0xFF])
@pytest.mark.parametrize("scale", [2.0**-24, 6.0e-5, 1.0, 65504.0], ids=["least", "subnormal", "one", "largest"])
def test_extreme_blocks_give_the_bits_of_ggml(fmt, byte, scale):
    fields = fmt.fields_of_blocks(np.full((3, 256 // fmt.block, fmt.block_bytes), byte, np.uint8))
    if "block_scale" in fields:
        fields["block_scale"][...] = scale
    elif fmt.block == 1:
        put_scales(fmt, fields, np.full(fields["value"].shape, scale))
    blocks = fmt.blocks_of_fields(fields).reshape(3, -1)
    layout = MatrixLayout(fmt, 3, 256)
    assert np.array_equal(
        layout.dequantize(layout.from_blocks(blocks)).view(np.uint32), oracle(fmt, blocks).view(np.uint32)
    )


@ALL
@pytest.mark.parametrize("rows", [[0], [36, 0, 16, 15, 16, 36], range(37)], ids=["one", "any", "all"])
def test_rows_can_be_read_by_number(fmt, rows):
    layout = MatrixLayout(fmt, 37, 256)
    planes = layout.from_blocks(random_blocks(fmt, 37, 256))
    wanted = np.array(rows, np.int64)
    found = layout.dequantize_rows(planes, wanted)
    assert found.shape == (len(wanted), 256)
    assert np.array_equal(found, layout.dequantize(planes)[wanted])


@ALL
def test_planes_and_matrices_begin_where_the_one_before_ends(fmt):
    for rows, cols in ((1, fmt.block), (17, 3 * fmt.block), (2880, 11 * 256)):
        layout = MatrixLayout(fmt, rows, cols)
        ends = [o + layout.plane(np.empty(layout.n_bytes, np.uint8), i).nbytes for i, o in enumerate(layout.offsets)]
        assert [*layout.offsets[1:], layout.n_bytes] == ends
        assert layout.n_bytes % 16 == 0


def test_spans_of_mixed_formats_align_each_matrix():
    mixed = [MatrixLayout(f, 17, 256) for f in FORMATS.values()]
    span = SpanLayout(tuple(f.name for f in FORMATS.values()), tuple(mixed))
    assert all(start % 64 == 0 for start in span.starts)
    for matrix, start, after in zip(mixed, span.starts, span.starts[1:], strict=False):
        assert 0 <= after - start - matrix.n_bytes < 64
    assert 0 <= span.n_bytes - span.starts[-1] - mixed[-1].n_bytes < 256


def test_low_nibbles_of_mxfp4_are_the_first_half_of_a_block():
    block = np.array([127, *(i | (15 - i) << 4 for i in range(16))], np.uint8)
    layout = MatrixLayout(BY_NAME["MXFP4"], 1, 32)
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    expected = [*values, *(-v for v in values), *(-v for v in reversed(values)), *reversed(values)]
    assert layout.dequantize(layout.from_blocks(block))[0].tolist() == expected
    assert expected[16:20] == [-6, -4, -3, -2]
