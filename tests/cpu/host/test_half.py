"""float16 to float32, in hardware and by integers: NumPy's values for all 65,536 patterns."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hotset.host import emit
from hotset.host.emit import I16, LANES_F32, Emitter
from hotset.quant.layout import GROUP

PATTERNS = np.arange(1 << 16, dtype=np.uint16)


@intrinsic
def scalar(typingctx, half):
    def generate(_context, b, _signature, args):
        return Emitter(b, "portable").half_to_float(args[0], None)

    return types.float32(types.uint16), generate


@intrinsic
def lanes(typingctx, source, target):
    def generate(context, b, _signature, args):
        e = Emitter(b, "portable")
        halves = b.load(b.inttoptr(args[0], ir.VectorType(I16, GROUP).as_pointer()), align=1)
        b.store(e.half_to_float(halves, GROUP), b.inttoptr(args[1], LANES_F32.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def convert_one_by_one(out):
    for i in range(PATTERNS.size):
        out[i] = scalar(PATTERNS[i])


def convert_by_lanes(out):
    for i in range(0, PATTERNS.size, GROUP):
        lanes(PATTERNS.ctypes.data + 2 * i, out.ctypes.data + 4 * i)


@pytest.mark.parametrize("hardware", [True, False])
@pytest.mark.parametrize("convert", [convert_one_by_one, convert_by_lanes])
def test_all_patterns(monkeypatch, hardware, convert):
    if hardware and not emit.has_half():
        pytest.skip("this processor converts no float16")
    monkeypatch.setattr(emit, "has_half", lambda: hardware)
    found = np.empty(PATTERNS.size, np.float32)
    numba.njit(convert)(found)
    expected = PATTERNS.view(np.float16).astype(np.float32)
    finite = ~np.isnan(expected)
    assert np.array_equal(found.view(np.uint32)[finite], expected.view(np.uint32)[finite])
    assert np.isnan(found[~finite]).all()
