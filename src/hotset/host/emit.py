"""LLVM IR for the inner loops: sixteen rows at a time, one lane each.

`Emitter` wraps a builder with the few vector operations that the formats' `chunks` functions use; `Block` gives them the loads of one
block; `Sub` and `Chunk` are what they hand back. A format so describes its bits once, and host/dot.py makes the integer and the float
product of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from llvmlite import ir

from hotset.host.cpu import has_half
from hotset.quant.layout import GROUP, QuantFormat

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F32 = ir.FloatType()
HALF = ir.HalfType()
LANES_I32 = ir.VectorType(I32, GROUP)
LANES_F32 = ir.VectorType(F32, GROUP)


@dataclass(frozen=True)
class Sub:
    """A run of elements under one scale: element `k0` of the block on, `n_words` words of four unsigned bytes; value = scale (q - offset) - minimum."""

    k0: int
    word: Callable[[int], Any]
    n_words: int
    scale: Callable[[], Any]
    minimum: Callable[[], Any] | None
    offset: int
    wide: bool


@dataclass(frozen=True)
class Lanes:
    """Integers of LLVM, one or sixteen, with Python's operators, so that the tricks of quant/codes.py read them too."""

    b: Any
    value: Any

    def _of(self, other: Any) -> Any:
        if isinstance(other, Lanes):
            return other.value
        kind, n = self.value.type, other & 0xFFFFFFFF
        return ir.Constant(kind, [n] * kind.count if hasattr(kind, "count") else n)

    def __and__(self, other: Any) -> Lanes:
        return Lanes(self.b, self.b.and_(self.value, self._of(other)))

    def __or__(self, other: Any) -> Lanes:
        return Lanes(self.b, self.b.or_(self.value, self._of(other)))

    def __xor__(self, other: Any) -> Lanes:
        return Lanes(self.b, self.b.xor(self.value, self._of(other)))

    def __add__(self, other: Any) -> Lanes:
        return Lanes(self.b, self.b.add(self.value, self._of(other)))

    def __sub__(self, other: Any) -> Lanes:
        return Lanes(self.b, self.b.sub(self.value, self._of(other)))

    def __mul__(self, other: Any) -> Lanes:
        return Lanes(self.b, self.b.mul(self.value, self._of(other)))

    def __lshift__(self, other: Any) -> Lanes:
        return Lanes(self.b, self.b.shl(self.value, self._of(other)))

    def __rshift__(self, other: Any) -> Lanes:
        return Lanes(self.b, self.b.lshr(self.value, self._of(other)))

    __radd__, __rmul__ = __add__, __mul__


@dataclass(frozen=True)
class Chunk:
    """Runs that share loaded words, so that they are computed side by side; or plain `floats` (one element)."""

    subs: tuple[Sub, ...]
    floats: Any = None


def plain(trick: Any) -> Any:
    """The Python function that Triton was given (as `fn`), and so those that it calls."""
    function = getattr(trick, "fn", trick)
    if not isinstance(function, FunctionType):
        return function
    names = set(function.__code__.co_names) & set(function.__globals__)
    scope = {name: plain(function.__globals__[name]) for name in names}
    return FunctionType(function.__code__, scope, function.__name__, closure=function.__closure__)


class Emitter:
    """Vector operations on sixteen lanes; `level` is one of cpu.LEVELS."""

    def __init__(self, builder: Any, level: str) -> None:
        self.b = builder
        self.level = level

    # What formats use.

    def chunk(self, *subs: Sub) -> Chunk:
        return Chunk(subs)

    def floats(self, values: Any) -> Chunk:
        return Chunk((), values)

    def sub(
        self,
        k0: int,
        word: Callable[[int], Any],
        n_words: int,
        *,
        scale: Callable[[], Any],
        minimum: Callable[[], Any] | None = None,
        offset: int = 0,
        wide: bool = False,
    ) -> Sub:
        """`wide`: bytes use all eight bits, so that a pair of products does not fit 16 bits."""
        return Sub(k0, word, n_words, scale, minimum, offset, wide)

    def nibble(self, words: Any, *, high: bool) -> Any:
        return self.b.and_(self.shr(words, 4) if high else words, self.splat(0x0F0F0F0F))

    def bit(self, words: Any, index: int, *, to: int) -> Any:
        """Bit `index` of each byte, moved to bit `to`."""
        return self.shl(self.b.and_(self.shr(words, index), self.splat(0x01010101)), to)

    def bit_of_step(self, words: Any, index: int, step: Any, per_step: int, *, to: int) -> Any:
        """Bit `index` + `per_step` * `step` (i32) of each byte, moved to bit `to`: turned there, with bits of the neighbours around it."""
        left = self.b.sub(I32(32 + to - index), self.b.mul(step, I32(per_step)))
        turn = self.intrinsic(f"llvm.fshl.v{GROUP}i32", LANES_I32, [LANES_I32] * 3)
        return self.b.and_(self.b.call(turn, [words, words, self.broadcast(left)]), self.splat(0x01010101 << to))

    def pair(self, words: Any, index: int, *, to: int) -> Any:
        """Bit pair `index` of each byte, moved to bits `to`, `to` + 1."""
        return self.shl(self.b.and_(self.shr(words, 2 * index), self.splat(0x03030303)), to)

    def apply(self, trick: Any, *integers: Any) -> Any:
        """A trick of quant/codes.py on integers of LLVM; numbers of Python stay what they are."""
        return plain(trick)(*(x if isinstance(x, int) else Lanes(self.b, x) for x in integers)).value

    def lookup(self, codes: Any, table: tuple[int, ...]) -> Any:
        """The numbers (sixteen unsigned bytes) that the codes, one below 16 in each byte, stand for."""
        if self.level == "portable":
            return self._lookup_by_bits(codes, table)
        if self.level.startswith("neon"):
            return self._parts(4, lambda part: self._table_lookup(part, table), codes)
        wide = self.level == "avx512-vnni"
        n = 64 if wide else 32
        octets = ir.VectorType(I8, n)
        shuffle = self.intrinsic(
            "llvm.x86.avx512.pshuf.b.512" if wide else "llvm.x86.avx2.pshuf.b", octets, [octets] * 2
        )
        numbers = ir.Constant(octets, list(table) * (n // 16))

        def look(part: Any) -> Any:
            return self.b.bitcast(self.b.call(shuffle, [numbers, self.b.bitcast(part, octets)]), part.type)

        return look(codes) if wide else self._parts(2, look, codes)

    def _table_lookup(self, part: Any, table: tuple[int, ...]) -> Any:
        octets = ir.VectorType(I8, 16)
        function = self.intrinsic("llvm.aarch64.neon.tbl1.v16i8", octets, [octets] * 2)
        found = self.b.call(function, [ir.Constant(octets, list(table)), self.b.bitcast(part, octets)])
        return self.b.bitcast(found, part.type)

    def _lookup_by_bits(self, codes: Any, table: tuple[int, ...]) -> Any:
        masks = [self.b.mul(self.b.and_(self.shr(codes, i), self.splat(0x01010101)), self.splat(255)) for i in range(4)]
        numbers = [self.splat(n * 0x01010101) for n in table]
        for mask in masks:
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            numbers = [self.b.xor(a, self.b.and_(mask, self.b.xor(a, b))) for a, b in pairs]
        return numbers[0]

    def bits(self, words: Any, first: int, n: int) -> Any:
        """`n` bits of each word from bit `first` on."""
        return self.b.and_(self.shr(words, first), self.splat((1 << n) - 1))

    def byte(self, words: Any, index: int) -> Any:
        return self.bits(words, 8 * index, 8)

    def or_(self, a: Any, b: Any) -> Any:
        return self.b.or_(a, b)

    def xor(self, a: Any, mask: int) -> Any:
        return self.b.xor(a, self.splat(mask))

    def shl(self, a: Any, n: int) -> Any:
        return self.b.shl(a, self.splat(n)) if n else a

    def shr(self, a: Any, n: int) -> Any:
        return self.b.lshr(a, self.splat(n)) if n else a

    def fmul(self, a: Any, b: Any) -> Any:
        return self.b.fmul(a, b)

    def float_splat(self, x: float) -> Any:
        return ir.Constant(LANES_F32, [x] * GROUP)

    def fneg(self, a: Any) -> Any:
        return self.b.fneg(a)

    def to_float(self, integers: Any) -> Any:
        return self.b.sitofp(integers, LANES_F32)

    def bits_to_half(self, words: Any) -> Any:
        """The lower 16 bits of words as float16 -> float32."""
        return self.half_to_float(self.b.trunc(words, ir.VectorType(I16, GROUP)), GROUP)

    def bits_to_float(self, words: Any) -> Any:
        return self.b.bitcast(words, LANES_F32)

    # What the products use.

    def splat(self, n: int) -> Any:
        return ir.Constant(LANES_I32, [n & 0xFFFFFFFF] * GROUP)

    def zeros(self) -> Any:
        return self.float_splat(0.0)

    def broadcast(self, scalar: Any) -> Any:
        lanes = ir.VectorType(scalar.type, GROUP)
        one = self.b.insert_element(ir.Constant(lanes, ir.Undefined), scalar, I32(0))
        return self.b.shuffle_vector(one, ir.Constant(lanes, ir.Undefined), ir.Constant(LANES_I32, [0] * GROUP))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.b.call(self.intrinsic(f"llvm.fma.v{GROUP}f32", LANES_F32, [LANES_F32] * 3), [a, b, c])

    def intrinsic(self, name: str, result: Any, arguments: list[Any]) -> Any:
        module = self.b.module
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)

    def at(self, base: Any, offset: Any, kind: Any) -> Any:
        """Pointer to `kind` at address `base` + `offset` bytes (both i64)."""
        return self.b.inttoptr(self.b.add(base, offset), kind.as_pointer())

    def load(self, base: Any, offset: int, kind: Any) -> Any:
        return self.b.load(self.at(base, I64(offset), kind), align=1)

    def gather(self, base: Any, offsets: Any) -> Any:
        """Words of 32 bits at address `base` (i64) + sixteen byte offsets."""
        if self.level == "portable" or self.level.startswith("neon"):  # NEON has no gather
            words = ir.Constant(LANES_I32, ir.Undefined)
            for i in range(GROUP):
                offset = self.b.zext(self.b.extract_element(offsets, I32(i)), I64)
                words = self.b.insert_element(words, self.b.load(self.at(base, offset, I32), align=1), I32(i))
            return words
        pointer = self.b.inttoptr(base, I8.as_pointer())
        if self.level == "avx512-vnni":
            mask = ir.VectorType(I1, GROUP)
            function = self.intrinsic(
                "llvm.x86.avx512.mask.gather.dpi.512", LANES_I32, [LANES_I32, pointer.type, LANES_I32, mask, I32]
            )
            return self.b.call(function, [self.splat(0), pointer, offsets, ir.Constant(mask, [1] * GROUP), I32(1)])
        words = ir.VectorType(I32, GROUP // 2)
        function = self.intrinsic("llvm.x86.avx2.gather.d.d.256", words, [words, pointer.type, words, words, I8])
        zero, ones = (ir.Constant(words, [n] * (GROUP // 2)) for n in (0, 0xFFFFFFFF))
        return self._parts(2, lambda part: self.b.call(function, [zero, pointer, part, ones, I8(1)]), offsets)

    def half_to_float(self, halves: Any, lanes: int | None) -> Any:
        """float16 bits (i16 scalar or vector of `lanes`) -> float32."""

        def of(kind: Any) -> Any:
            return ir.VectorType(kind, lanes) if lanes else kind

        if has_half():
            return self.b.fpext(self.b.bitcast(halves, of(HALF)), of(F32))
        return self._half_by_integers(halves, of)

    def _half_by_integers(self, halves: Any, of: Callable[[Any], Any]) -> Any:
        # Without hardware conversion LLVM would call a library that is not there: move the 15 bits up, scale by 2^112 (exact, also for
        # subnormals), mend infinities and NaN, put the sign back.
        b = self.b

        def const(kind: Any, value: Any) -> Any:
            t = of(kind)
            return ir.Constant(t, [value] * t.count if hasattr(t, "count") else value)

        wide = b.zext(halves, of(I32))
        magnitude = b.shl(b.and_(wide, const(I32, 0x7FFF)), const(I32, 13))
        scaled = b.fmul(b.bitcast(magnitude, of(F32)), const(F32, 2.0**112))
        special = b.icmp_unsigned(">=", magnitude, const(I32, 0x7C00 << 13))
        bits = b.select(special, b.or_(magnitude, const(I32, 0x7F800000)), b.bitcast(scaled, of(I32)))
        sign = b.shl(b.and_(wide, const(I32, 0x8000)), const(I32, 16))
        return b.bitcast(b.or_(bits, sign), of(F32))

    def dot4(self, total: Any, unsigned: Any, signed: Any, *, wide: bool) -> Any:
        """Total + the sum of four byte products per 32-bit lane: unsigned bytes (below 128 unless `wide`) times signed bytes; exact."""
        if self.level == "avx512-vnni":
            return self._vnni(total, unsigned, signed, 512)
        if self.level == "avx-vnni":
            return self._parts(2, lambda t, u, s: self._vnni(t, u, s, 256), total, unsigned, signed)
        if self.level == "avx2":
            return self._parts(2, lambda t, u, s: self._maddubs(t, u, s, wide), total, unsigned, signed)
        if self.level == "neon-i8mm":
            return self._parts(4, lambda t, u, s: self._neon("usdot", t, u, s), total, unsigned, signed)
        if self.level == "neon-dotprod":
            return self._parts(4, lambda t, u, s: self._signed_dot(t, u, s, wide), total, unsigned, signed)
        return self._portable_dot4(total, unsigned, signed)

    def _parts(self, n: int, product: Callable[..., Any], *lanes: Any) -> Any:
        """The product of `n` parts of the lanes, one after the other, put together again."""
        undefined = ir.Constant(LANES_I32, ir.Undefined)
        size = GROUP // n
        parts = []
        for start in range(0, GROUP, size):
            mask = ir.Constant(ir.VectorType(I32, size), list(range(start, start + size)))
            parts.append(product(*(self.b.shuffle_vector(x, undefined, mask) for x in lanes)))
        while len(parts) > 1:
            size *= 2
            whole = ir.Constant(ir.VectorType(I32, size), list(range(size)))
            parts = [self.b.shuffle_vector(a, b, whole) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def _neon(self, name: str, total: Any, a: Any, signed: Any) -> Any:
        words, octets = ir.VectorType(I32, 4), ir.VectorType(I8, 16)
        function = self.intrinsic(f"llvm.aarch64.neon.{name}.v4i32.v16i8", words, [words, octets, octets])
        return self.b.call(function, [total, self.b.bitcast(a, octets), self.b.bitcast(signed, octets)])

    def _signed_dot(self, total: Any, unsigned: Any, signed: Any, wide: bool) -> Any:
        if not wide:
            return self._neon("sdot", total, unsigned, signed)

        def const(n: int) -> Any:
            return ir.Constant(ir.VectorType(I32, 4), [n] * 4)

        # Bytes of 128 and more count as negative there: take the low seven bits and half the top bit apart.
        low = self._neon("sdot", total, self.b.and_(unsigned, const(0x7F7F7F7F)), signed)
        halved = self.b.and_(self.b.lshr(unsigned, const(1)), const(0x40404040))
        return self.b.add(low, self.b.shl(self._neon("sdot", const(0), halved, signed), const(1)))

    def _vnni(self, total: Any, unsigned: Any, signed: Any, bits: int) -> Any:
        # Newer LLVM declares the operands as bytes and reads this older form too.
        words = ir.VectorType(I32, bits // 32)
        function = self.intrinsic(f"llvm.x86.avx512.vpdpbusd.{bits}", words, [words] * 3)
        return self.b.call(function, [total, unsigned, signed])

    def _maddubs(self, total: Any, unsigned: Any, signed: Any, wide: bool) -> Any:
        octets, shorts, words = ir.VectorType(I8, 32), ir.VectorType(I16, 16), ir.VectorType(I32, 8)
        pairs = self.intrinsic("llvm.x86.avx2.pmadd.ub.sw", shorts, [octets, octets])
        quads = self.intrinsic("llvm.x86.avx2.pmadd.wd", words, [shorts, shorts])
        ones = ir.Constant(shorts, [1] * 16)

        def const(n: int) -> Any:
            return ir.Constant(words, [n] * 8)

        def product(bytes_: Any) -> Any:
            twos = self.b.call(pairs, [self.b.bitcast(bytes_, octets), self.b.bitcast(signed, octets)])
            return self.b.call(quads, [twos, ones])

        if not wide:
            return self.b.add(total, product(unsigned))
        # 255 x 127 twice saturates 16 bits: take the low seven bits and half the top bit apart.
        low = product(self.b.and_(unsigned, const(0x7F7F7F7F)))
        top = product(self.b.and_(self.b.lshr(unsigned, const(1)), const(0x40404040)))
        return self.b.add(self.b.add(total, low), self.b.shl(top, const(1)))

    def _portable_dot4(self, total: Any, unsigned: Any, signed: Any) -> Any:
        for i in range(4):
            u = self.b.and_(self.shr(unsigned, 8 * i), self.splat(255))
            s = self.b.ashr(self.shl(signed, 24 - 8 * i), self.splat(24))
            total = self.b.add(total, self.b.mul(u, s))
        return total


class Block:
    """The loads of one block of one group, or of one `step` (i32) through it: plane name and unit -> sixteen lanes."""

    def __init__(self, emitter: Emitter, fmt: QuantFormat, planes: list[Any], table: Any, step: Any) -> None:
        self.e = emitter
        self.planes = {p.name: (p, address) for p, address in zip(fmt.planes, planes, strict=True)}
        self.table = table
        self.step = step

    def entry(self, indices: Any) -> Any:
        """Sixteen entries of the format's table of 16-bit words, each by its index."""
        offsets = self.e.shl(indices, 1)
        return self.e.b.and_(self.e.gather(self.table, offsets), self.e.splat(0xFFFF))

    def _lanes(self, plane: str, unit: Any, kind: Any) -> Any:
        """`unit` is a number, or one that LLVM computes (i32)."""
        p, address = self.planes[plane]
        lanes = ir.VectorType(kind, GROUP)
        if isinstance(unit, int):
            return self.e.load(address, unit * p.unit_bytes * GROUP, lanes)
        offset = self.e.b.zext(self.e.b.mul(unit, I32(p.unit_bytes * GROUP)), I64)
        return self.e.b.load(self.e.at(address, offset, lanes), align=1)

    def u32(self, plane: str, unit: Any = 0) -> Any:
        return self._lanes(plane, unit, I32)

    def f32(self, plane: str, unit: int = 0) -> Any:
        return self._lanes(plane, unit, F32)

    def u16(self, plane: str, unit: Any = 0) -> Any:
        return self.e.b.zext(self._lanes(plane, unit, I16), LANES_I32)

    def f16(self, plane: str, unit: int = 0) -> Any:
        return self.e.half_to_float(self._lanes(plane, unit, I16), GROUP)

    def u8(self, plane: str, unit: int = 0) -> Any:
        return self.e.b.zext(self._lanes(plane, unit, I8), LANES_I32)

    def i8(self, plane: str, unit: int = 0) -> Any:
        return self.e.b.sext(self._lanes(plane, unit, I8), LANES_I32)
