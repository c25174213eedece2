"""Matrix products of quantised weights where they lie: out[i, r] = sum_k W[r, k] x[i, k], for one matrix or a list of experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba

from hotset.host import dot
from hotset.host.compile import compiled
from hotset.host.cpu import LEVELS, levels

AT_ONCE = 4


@compiled(inline=True)
def _address(array: Any, index: int) -> int:
    return array.ctypes.data + index * array.itemsize


@cache
def grouped_matmul(ggml_type: int, way: int, level: str = levels()[0]) -> Callable[..., None]:
    """The product for one format, way (dot.FLOAT or dot.INTEGER) and level, compiled on first use.

    f(addresses, starts, x_rows, out_rows, n_groups, n_blocks, xf, xq, xd, xm, xh, out): item i is the matrix at `addresses[i]`; it is
    multiplied with activation rows x_rows[starts[i]:starts[i + 1]], and the results go to the same positions of out_rows in `out`,
    float32 [., 16 n_groups]. All index arrays are int64. Activations as in dot.group_dot; those that the way does not read may be empty.
    """
    level_id = LEVELS.index(level)

    @compiled(parallel=True)
    def multiply(
        addresses: Any, starts: Any, x_rows: Any, out_rows: Any, n_groups: int, n_blocks: int, xf: Any, xq: Any, xd: Any, xm: Any,
        xh: Any, out: Any,
    ) -> None:  # fmt: skip
        f, q, d, m, h, o = (
            _address(xf, 0),
            _address(xq, 0),
            _address(xd, 0),
            _address(xm, 0),
            _address(xh, 0),
            _address(out, 0),
        )
        for task in numba.prange(addresses.size * n_groups):
            item = task // n_groups
            group = task % n_groups
            i = starts[item]
            end = starts[item + 1]
            while i + AT_ONCE <= end:
                dot.group_dot(
                    ggml_type, way, level_id, 4, addresses[item], group, n_groups, n_blocks, _address(x_rows, i), _address(out_rows, i),
                    f, q, d, m, h, o,
                )  # fmt: skip
                i += AT_ONCE
            while i < end:
                dot.group_dot(
                    ggml_type, way, level_id, 1, addresses[item], group, n_groups, n_blocks, _address(x_rows, i), _address(out_rows, i),
                    f, q, d, m, h, o,
                )  # fmt: skip
                i += 1

    return multiply
