"""Reading and writing memory by address inside compiled code."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import raw_memcpy
from numba.extending import intrinsic

from hotset.host.emit import F32, I32, Emitter


def _peek(numba_type: Any, bits: int) -> Any:
    def peek(typingctx: Any, address: Any) -> Any:
        def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
            return b.load(b.inttoptr(args[0], ir.IntType(bits).as_pointer()), align=1)

        return numba_type(types.int64), generate

    return intrinsic(peek)


def _poke(numba_type: Any, bits: int) -> Any:
    def poke(typingctx: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            b.store(args[1], b.inttoptr(args[0], ir.IntType(bits).as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, numba_type), generate

    return intrinsic(poke)


peek8, peek16, peek32 = _peek(types.uint8, 8), _peek(types.uint16, 16), _peek(types.uint32, 32)
poke8, poke16, poke32 = _poke(types.uint8, 8), _poke(types.uint16, 16), _poke(types.uint32, 32)
peek64, poke64 = _peek(types.int64, 64), _poke(types.int64, 64)


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, n: Any) -> Any:
    """Copy n bytes between addresses, as the C library does."""

    def generate(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        raw_memcpy(b, b.inttoptr(args[0], byte), b.inttoptr(args[1], byte), args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def power_of_two(typingctx: Any, n: Any) -> Any:
    """2^n as float32 for int32 n in -126 .. 127."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.bitcast(b.shl(b.add(args[0], I32(127)), I32(23)), F32)

    return types.float32(types.int32), generate


@intrinsic
def half_to_float(typingctx: Any, bits: Any) -> Any:
    """The float32 of float16 bits (uint16)."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return Emitter(b, "portable").half_to_float(args[0], None)

    return types.float32(types.uint16), generate


@intrinsic
def magnitude_bits(typingctx: Any, x: Any) -> Any:
    """The bits of |x| (float32) as int32: they order as the magnitudes do, and integers have vector maxima."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.and_(b.bitcast(args[0], I32), I32(0x7FFFFFFF))

    return types.int32(types.float32), generate


@intrinsic
def float_of_bits(typingctx: Any, bits: Any) -> Any:
    """The float32 with the given int32 bits."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.bitcast(args[0], F32)

    return types.float32(types.int32), generate
