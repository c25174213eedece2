"""Random weights of any format of the table, for tests and benchmarks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.layout import Bytes, QuantFormat
from hotset.quant.nvfp4 import float8

FieldArrays = dict[str, NDArray[Any]]
# IQ1_M keeps a quarter of its float16 scale in each of four words.
QUARTERS = np.array([0, 4, 8, 12], np.uint16)


def random_fields(fmt: QuantFormat, rows: int, cols: int, seed: int = 0, scale: float | None = None) -> FieldArrays:
    """Random bits, but for scales and floats, since NaN has no single value to compare: small normal numbers, or all `scale`."""
    rng = np.random.default_rng(seed)
    fields = fmt.fields_of_blocks(rng.integers(0, 256, (rows, cols // fmt.block, fmt.block_bytes), np.uint8))
    shape = scales_shape(fmt, fields)
    put_scales(fmt, fields, rng.normal(0, 0.1, shape) if scale is None else np.full(shape, scale))
    return fields


def random_blocks(fmt: QuantFormat, rows: int, cols: int, seed: int = 0, scale: float | None = None) -> Bytes:
    """GGUF bytes uint8 [rows, row_bytes] of `random_fields`."""
    return fmt.blocks_of_fields(random_fields(fmt, rows, cols, seed, scale)).reshape(rows, -1)


def random_weights(fmt: QuantFormat, rows: int, cols: int, deviation: float, seed: int = 0) -> Bytes:
    """GGUF bytes uint8 [rows, row_bytes] whose values have mean 0 and about this deviation; scales differ by up to a fifth."""
    rng = np.random.default_rng(seed)
    fields = random_fields(fmt, rows, cols, seed, scale=1)
    shape = scales_shape(fmt, fields)
    if fmt.block == 1:
        put_scales(fmt, fields, rng.normal(0, deviation, shape))
    else:
        scales = _centred_scales(fmt, fields)
        put_scales(fmt, fields, scales * rng.uniform(0.8, 1.2, shape) * (deviation / fmt.values(fields).std()))
    return fmt.blocks_of_fields(fields).reshape(rows, -1)


def scales_shape(fmt: QuantFormat, fields: FieldArrays) -> tuple[int, ...]:
    """The shape of all scales (or floats): they are a block's last plane."""
    shape = fields[fmt.planes[-1].name].shape
    return (*shape[:-1], 1) if fmt.name == "IQ1_M" else shape


def put_scales(fmt: QuantFormat, fields: FieldArrays, values: NDArray[np.float64]) -> None:
    """Give the blocks the scales, or the values of floats, that come closest to these; signs are lost where a format has none."""
    last = fmt.planes[-1]
    if fmt.name == "BF16":
        fields["value"] = (values.astype("<f4").view("<u4") >> 16).astype("<u2")
    elif fmt.name == "IQ1_M":
        fields["scale"] = fields["scale"] & 0x0FFF | (values.astype("<f2").view("<u2") >> QUARTERS & 15) << 12
    elif last.name == "exponent":
        fields["exponent"] = (128 + np.rint(np.log2(np.abs(values) + 1e-9))).astype(np.uint8)
    elif last.name == "float8":
        numbers = float8(np.arange(127, dtype=np.uint8))
        above = np.searchsorted(numbers, np.abs(values)).clip(1, 126)
        nearer_below = np.abs(values) - numbers[above - 1] < numbers[above] - np.abs(values)
        fields["float8"] = (above - nearer_below).astype(np.uint8)
    else:
        fields[last.name] = values.astype(last.dtype)


def _centred_scales(fmt: QuantFormat, fields: FieldArrays) -> NDArray[np.float64]:
    """Scales of 1, left in `fields` too; where a block has a scale of its minimum, the one that brings the mean to 0."""
    scales = np.ones(scales_shape(fmt, fields))
    if fmt.planes[-1].name == "block_scale" and scales.shape[-1] == 2:
        means = []
        for one in ((1.0, 0.0), (0.0, 1.0)):
            put_scales(fmt, fields, np.broadcast_to(np.array(one), scales.shape))
            means.append(float(fmt.values(fields).mean()))
        scales[..., 1] = -means[0] / means[1]
        put_scales(fmt, fields, scales)
    return scales
