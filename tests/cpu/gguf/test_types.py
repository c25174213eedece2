"""The table of tensor types against the gguf package."""

from __future__ import annotations

import gguf
import pytest

from hotset.gguf import GGML_TYPES, REMOVED_TYPES, TYPES_BY_NAME, TensorInfo


def test_every_type_of_the_gguf_package_has_the_same_name_and_size():
    for kind, size in gguf.GGML_QUANT_SIZES.items():
        ours = GGML_TYPES[kind.value]
        assert (ours.name, ours.block, ours.block_bytes) == (kind.name, *size)


def test_no_id_is_both_current_and_removed():
    assert sorted(REMOVED_TYPES) == [4, 5, 31, 32, 33, 36, 37, 38]
    assert not GGML_TYPES.keys() & REMOVED_TYPES.keys()
    assert len(TYPES_BY_NAME) == len(GGML_TYPES)


@pytest.mark.parametrize(
    ("name", "columns", "row_bytes"),
    [("Q4_K", 2048, 1152), ("Q6_K", 2048, 1680), ("Q5_0", 704, 484), ("MXFP4", 2880, 1530), ("NVFP4", 128, 72)],
)
def test_a_row_takes_the_bytes_of_its_blocks(name, columns, row_bytes):
    tensor = TensorInfo("t", (4, 3, columns), TYPES_BY_NAME[name], 12 * row_bytes, part=0, offset=0)
    assert (tensor.row_bytes, tensor.n_rows, tensor.n_elements) == (row_bytes, 12, 12 * columns)
