"""The two inner products: one group of sixteen weight rows times `m` rows of activations.

integer (fast mode): sum over sub-blocks of (x scale) (scale) (exact int32 sum of q x) - (x scale) (sum of x) minimum;
float (reference mode, and formats without scales): sum over k of w[k] x[k], one fused multiply-add per element, k in storage order.
Every row keeps its own accumulator and the order of its sums depends on the format alone, so that a row's result is the same beside
any other rows and on any number of threads.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hotset.host.activation import X_BLOCK, X_HALF
from hotset.host.cpu import LEVELS
from hotset.host.emit import F32, I32, I64, LANES_F32, LANES_I32, Block, Emitter, Sub
from hotset.quant.formats import FORMATS
from hotset.quant.layout import GROUP, QuantFormat

FLOAT, INTEGER = 0, 1


class _Rows:
    """Addresses of the activations of `m` rows, advanced block by block."""

    def __init__(self, e: Emitter, bases: dict[str, Any], rows: list[Any], cols: Any) -> None:
        b = e.b
        self.e = e
        bytes_per_row = {"f": b.mul(cols, I64(4)), "q": cols}
        bytes_per_row["d"] = bytes_per_row["m"] = b.udiv(b.mul(cols, I64(4)), I64(X_BLOCK))
        bytes_per_row["h"] = b.udiv(b.mul(cols, I64(4)), I64(X_HALF))
        self.starts = {
            name: [b.add(base, b.mul(row, bytes_per_row[name])) for row in rows] for name, base in bases.items()
        }

    def enter(self, k: Any) -> None:
        """Go to element `k` (i64), a multiple of the format's block."""
        b = self.e.b
        steps = {"f": b.mul(k, I64(4)), "q": k}
        steps["d"] = steps["m"] = b.udiv(b.mul(k, I64(4)), I64(X_BLOCK))
        steps["h"] = b.udiv(b.mul(k, I64(4)), I64(X_HALF))
        self.here = {name: [b.add(start, steps[name]) for start in starts] for name, starts in self.starts.items()}

    def value(self, row: int, k: int) -> Any:
        return self.e.load(self.here["f"][row], 4 * k, F32)

    def word(self, row: int, k: int) -> Any:
        """Four int8 activations from element `k` on, in every lane."""
        return self.e.broadcast(self.e.load(self.here["q"][row], k, I32))

    def scale(self, row: int, k: int) -> Any:
        return self.e.load(self.here["d"][row], k // X_BLOCK * 4, F32)

    def scaled_total(self, row: int, k: int, n: int) -> Any:
        """The sum of the activations k .. k + n as quantised, n = 16 or 32."""
        if n == X_BLOCK:
            return self.e.load(self.here["m"][row], k // X_BLOCK * 4, F32)
        return self.e.b.fmul(self.scale(row, k), self.e.b.sitofp(self.total(row, k, n), F32))

    def total(self, row: int, k: int, n: int) -> Any:
        """Sum of the int8 activations k .. k + n, n = 16 or 32."""
        halves = [self.e.load(self.here["h"][row], (k // X_HALF + i) * 4, I32) for i in range(n // X_HALF)]
        return halves[0] if len(halves) == 1 else self.e.b.add(*halves)


def _integer_chunk(e: Emitter, subs: tuple[Sub, ...], x: _Rows, sums: list[Any]) -> None:
    b = e.b
    m = len(sums)
    start: Any = ir.Constant(LANES_I32, [0] * GROUP)

    def begin(sub: Sub, row: int) -> Any:
        if not sub.offset:
            return start
        total = x.total(row, sub.k0, 4 * sub.n_words)
        return e.broadcast(b.mul(total, I32(-sub.offset)))

    products = [[begin(sub, row) for row in range(m)] for sub in subs]
    for i in range(subs[0].n_words):
        for s, sub in enumerate(subs):
            word = sub.word(i)
            for row in range(m):
                products[s][row] = e.dot4(products[s][row], word, x.word(row, sub.k0 + 4 * i), wide=sub.wide)
    for s, sub in enumerate(subs):
        scale = sub.scale()
        minimum = sub.minimum() if sub.minimum else None
        for row in range(m):
            scaled = b.fmul(e.to_float(products[s][row]), e.broadcast(x.scale(row, sub.k0)))
            total = e.fma(scaled, scale, b.load(sums[row]))
            if minimum is not None:
                total = e.fma(e.broadcast(b.fneg(x.scaled_total(row, sub.k0, 4 * sub.n_words))), minimum, total)
            b.store(total, sums[row])


def _float_chunk(e: Emitter, subs: tuple[Sub, ...], x: _Rows, sums: list[Any]) -> None:
    b = e.b
    for sub in subs:
        scale = sub.scale()
        minimum = sub.minimum() if sub.minimum else None
        for i in range(sub.n_words):
            word = sub.word(i)
            for j in range(4):
                q = b.and_(e.shr(word, 8 * j), e.splat(255))
                if sub.offset:
                    q = b.sub(q, e.splat(sub.offset))
                weight = b.fmul(e.to_float(q), scale)
                if minimum is not None:
                    weight = b.fsub(weight, minimum)
                for row in range(len(sums)):
                    value = e.broadcast(x.value(row, sub.k0 + 4 * i + j))
                    b.store(e.fma(weight, value, b.load(sums[row])), sums[row])


def _emit_block(e: Emitter, fmt: QuantFormat, block: Block, x: _Rows, sums: list[Any], way: int) -> None:
    for chunk in fmt.chunks(e, block):
        if chunk.floats is not None:
            for row, total in enumerate(sums):
                e.b.store(e.fma(chunk.floats, e.broadcast(x.value(row, 0)), e.b.load(total)), total)
        elif way == INTEGER:
            _integer_chunk(e, chunk.subs, x, sums)
        else:
            _float_chunk(e, chunk.subs, x, sums)


def _emit_group(e: Emitter, fmt: QuantFormat, way: int, m: int, args: list[Any]) -> None:
    """The body of `group_dot`: accumulators on the stack (LLVM keeps them in registers), a loop over blocks and their steps, one store per row."""
    b = e.b
    matrix, group, n_groups, n_blocks, x_rows, out_rows, xf, xq, xd, xm, xh, out = args
    rows = [e.load(x_rows, 8 * r, I64) for r in range(m)]
    bases = {"q": xq, "d": xd, "m": xm, "h": xh} if way == INTEGER else {"f": xf}
    x = _Rows(e, bases, rows, b.mul(n_blocks, I64(fmt.block)))
    sums = [cgutils.alloca_once_value(b, e.zeros()) for _ in range(m)]
    all_blocks = b.mul(n_groups, n_blocks)
    starts, before = [], 0
    for p in fmt.planes:
        plane = b.add(matrix, b.add(b.mul(all_blocks, I64(before * GROUP)), I64(fmt.table_bytes)))
        starts.append(b.add(plane, b.mul(b.mul(group, n_blocks), I64(p.bytes_per_block * GROUP))))
        before += p.bytes_per_block
    with cgutils.for_range(b, n_blocks) as loop:
        here = [
            b.add(s, b.mul(loop.index, I64(p.bytes_per_block * GROUP))) for s, p in zip(starts, fmt.planes, strict=True)
        ]
        first = b.mul(loop.index, I64(fmt.block))
        with cgutils.for_range(b, I64(fmt.steps)) as part:
            parts = [
                at if p.whole else b.add(at, b.mul(part.index, I64(p.bytes_per_block * GROUP // fmt.steps)))
                for at, p in zip(here, fmt.planes, strict=True)
            ]
            x.enter(b.add(first, b.mul(part.index, I64(fmt.block // fmt.steps))))
            _emit_block(e, fmt, Block(e, fmt, parts, matrix, b.trunc(part.index, I32)), x, sums, way)
    for r in range(m):
        row = e.load(out_rows, 8 * r, I64)
        at = b.mul(b.add(b.mul(row, n_groups), group), I64(4 * GROUP))
        b.store(b.load(sums[r]), e.at(out, at, LANES_F32), align=4)


@intrinsic(prefer_literal=True)
def group_dot(
    typingctx: Any, fmt: Any, way: Any, level: Any, m: Any, matrix: Any, group: Any, n_groups: Any, n_blocks: Any, x_rows: Any,
    out_rows: Any, xf: Any, xq: Any, xd: Any, xm: Any, xh: Any, out: Any,
) -> Any:  # fmt: skip
    """One group of a matrix times m rows of activations.

    `fmt`, `way`, `level`, `m` are literals: ggml type, FLOAT or INTEGER, index into cpu.LEVELS, rows. All others are int64: the address
    of the matrix, the group and how many there are, blocks per row, addresses of m int64 row numbers of the activations and of the
    output, addresses of the activations (float32 [., cols]; int8 [., cols], float32 [., cols/32] scales and scaled sums, int32
    [., cols/16] sums) and of the output float32 [., 16 n_groups].
    """
    literals = (fmt, way, level, m)
    if not all(isinstance(t, types.IntegerLiteral) for t in literals):
        return None
    fmt_id, way_id, level_id, rows = (t.literal_value for t in literals)
    signature = types.void(*literals, *([types.int64] * 12))

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        emitter = Emitter(builder, LEVELS[level_id])
        _emit_group(emitter, FORMATS[fmt_id], way_id, rows, list(args[4:]))
        return context.get_dummy_value()

    return signature, generate
