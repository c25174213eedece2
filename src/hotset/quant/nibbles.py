"""Formats whose nibbles stand for sixteen numbers: the numbers, and how they are looked up four at a time.

`E2M1` is the 4-bit float of MXFP4 and NVFP4, doubled as in ggml; `IQ4` the levels of IQ4_NL and IQ4_XS. As unsigned bytes they are shifted
by `E2M1_ZERO` and `IQ4_ZERO`.
"""

from __future__ import annotations

from hotset.quant.codes import one_of_two
from hotset.quant.triton import jit, tl

E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1_ZERO, IQ4_ZERO = 12, 128
E2M1_BYTES = tuple(n + E2M1_ZERO for n in E2M1)
IQ4_BYTES = tuple(n + IQ4_ZERO for n in IQ4)

# $2 holds eight nibbles; the numbers of the low ones go to $0, of the high ones to $1. `prmt` takes four bytes of eight by the lowest
# three bits of four nibbles (so the fourth bit is cleared): once from each half of the table, then by the fourth bit from the two.
_LOOK_UP = """
{
.reg .b32 three, fourth, a, b, c, d;
and.b32 three, $2, 0x77777777;
and.b32 fourth, $2, 0x88888888;
shr.u32 fourth, fourth, 1;
or.b32 fourth, fourth, 0x32103210;
prmt.b32 a, $3, $4, three;
prmt.b32 b, $5, $6, three;
prmt.b32 c, a, b, fourth;
shr.u32 three, three, 16;
shr.u32 fourth, fourth, 16;
prmt.b32 a, $3, $4, three;
prmt.b32 b, $5, $6, three;
prmt.b32 d, a, b, fourth;
prmt.b32 $0, c, d, 0x6420;
prmt.b32 $1, c, d, 0x7531;
}
"""
LOOK_UP = tl.constexpr(_LOOK_UP) if tl else _LOOK_UP


@jit
def in_all_bytes(N: tl.constexpr) -> tl.tensor:
    """Repeat a byte four times; as a signed integer, for those from 2^31 on are 64-bit ones to Triton."""
    return (N * 0x01010101 ^ 0x80000000) - 0x80000000


@jit
def four_bytes(A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr) -> tl.tensor:
    """Put four bytes into a word."""
    return ((A | (B << 8) | (C << 16) | (D << 24)) ^ 0x80000000) - 0x80000000


@jit
def pick(mask: tl.tensor, A: tl.constexpr, B: tl.constexpr) -> tl.tensor:
    """Take byte B where the mask has ones, else A."""
    return in_all_bytes(A) ^ (mask & in_all_bytes(A ^ B))


@jit
def look_up(
    word: tl.tensor,  # int32: eight nibbles
    high: tl.tensor,  # 0 or 1: which nibble of each byte; a constant with ASM
    ASM: tl.constexpr,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, N3: tl.constexpr,
    N4: tl.constexpr, N5: tl.constexpr, N6: tl.constexpr, N7: tl.constexpr,
    N8: tl.constexpr, N9: tl.constexpr, N10: tl.constexpr, N11: tl.constexpr,
    N12: tl.constexpr, N13: tl.constexpr, N14: tl.constexpr, N15: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Turn four nibbles into bytes of the table N0, ..., N15: by permutations of bytes, or choosing by one bit after the other."""
    if ASM:
        lows, highs = tl.inline_asm_elementwise(
            LOOK_UP,
            "=r,=r,r,r,r,r,r",
            [word, four_bytes(N0, N1, N2, N3), four_bytes(N4, N5, N6, N7), four_bytes(N8, N9, N10, N11), four_bytes(N12, N13, N14, N15)],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )  # fmt: skip
        numbers = highs if high else lows
    else:
        codes = word >> (4 * high)
        first = (codes & 0x01010101) * 255
        second = ((codes >> 1) & 0x01010101) * 255
        third = ((codes >> 2) & 0x01010101) * 255
        fourth = ((codes >> 3) & 0x01010101) * 255
        a = one_of_two(second, pick(first, N0, N1), pick(first, N2, N3))
        b = one_of_two(second, pick(first, N4, N5), pick(first, N6, N7))
        c = one_of_two(second, pick(first, N8, N9), pick(first, N10, N11))
        d = one_of_two(second, pick(first, N12, N13), pick(first, N14, N15))
        numbers = one_of_two(fourth, one_of_two(third, a, b), one_of_two(third, c, d))
    return numbers


@jit
def look_up_e2m1(word: tl.tensor, high: tl.tensor, ASM: tl.constexpr) -> tl.tensor:
    """Turn four nibbles into bytes of `E2M1_BYTES`."""
    return look_up(word, high, ASM, 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)


@jit
def look_up_iq4(word: tl.tensor, high: tl.tensor, ASM: tl.constexpr) -> tl.tensor:
    """Turn four nibbles into bytes of `IQ4_BYTES`."""
    return look_up(word, high, ASM, 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241)
