"""Which tokens a row may draw, as bits: token t is bit t % 32 of word t // 32, 1 where it is allowed.

This file imports no Triton: the kernel is in sampling.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotset.errors import InputError

WORD_BITS = 32
Words = NDArray[np.int32]


def n_words(n_vocab: int) -> int:
    """How many words hold a bit for every token."""
    return -(-n_vocab // WORD_BITS)


def pack(allowed: NDArray[np.bool_]) -> Words:
    """Pack bool [n_vocab] into words int32; the bits past the end are 0."""
    padded = np.zeros(n_words(len(allowed)) * WORD_BITS, np.bool_)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<i4").astype(np.int32)


def unpack(words: Words, n_vocab: int) -> NDArray[np.bool_]:
    """Unpack words int32 into bool [n_vocab]."""
    octets = checked(words, n_vocab).astype("<i4").view(np.uint8)
    return np.unpackbits(octets, count=n_vocab, bitorder="little").astype(np.bool_)


def checked(words: Words, n_vocab: int) -> Words:
    """The words, contiguous; InputError where they are not int32 [n_vocab / 32, rounded up]."""
    if words.dtype != np.int32 or words.shape != (n_words(n_vocab),):
        raise InputError(
            f"a token mask of {words.dtype} {list(words.shape)}; {n_vocab} tokens need int32 [{n_words(n_vocab)}], a bit each"
        )
    return np.ascontiguousarray(words)
