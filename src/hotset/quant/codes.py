"""Tricks with the four codes in a 32-bit word: one definition for Triton and for the host's vectors (emit.Emitter.apply).

Plain arithmetic on integers and whole words of them; a shift to the right may be logical or arithmetic. Codes of four elements are
brought into the four bytes of a word, mapped to the numbers they stand for, and shifted by a constant that makes them unsigned.
"""

from __future__ import annotations

from hotset.quant.triton import jit, tl


@jit
def spread_bits(bits: tl.tensor) -> tl.tensor:
    """Four bits -> one per byte."""
    return (bits * 0x00204081) & 0x01010101


@jit
def spread_pairs(codes: tl.tensor) -> tl.tensor:
    """Four codes of two bits -> one per byte."""
    codes = (codes | (codes << 12)) & 0x000F000F
    return (codes | (codes << 6)) & 0x03030303


@jit
def spread_threes(codes: tl.tensor) -> tl.tensor:
    """Four codes of three bits -> one per byte."""
    codes = (codes | (codes << 10)) & 0x003F003F
    return (codes | (codes << 5)) & 0x07070707


@jit
def with_parity(signs: tl.tensor) -> tl.tensor:
    """Seven signs -> eight: the number of negative ones is even (ggml: ksigns_iq2xs)."""
    odd = signs ^ (signs >> 4)
    odd = odd ^ (odd >> 2)
    odd = (odd ^ (odd >> 1)) & 1
    return signs | (odd << 7)


@jit
def signed_around_64(magnitudes: tl.tensor, negative: tl.tensor) -> tl.tensor:
    """Bytes below 64 and bytes 0 or 1 -> bytes 64 + or - the magnitude."""
    return ((magnitudes | 0x40404040) ^ (negative * 127)) + negative


@jit
def one_of_two(mask: tl.tensor, a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Take bits of b where the mask has ones, else of a."""
    return a ^ (mask & (a ^ b))
