"""Token masks as bits."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.errors import InputError
from hotset.kernels.token_mask import checked, n_words, pack, unpack


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, 151_936])
def test_bits_come_back_and_stand_where_they_should(n):
    allowed = np.random.default_rng(n).random(n) < 0.5
    words = pack(allowed)
    assert words.dtype == np.int32
    assert words.shape == (n_words(n),)
    assert np.array_equal(unpack(words, n), allowed)
    for t in {0, n // 2, n - 1}:
        assert (int(words[t // 32]) >> (t % 32)) & 1 == allowed[t]


@pytest.mark.parametrize("words", [np.zeros(3, np.int32), np.zeros(2, np.int64), np.zeros((1, 2), np.int32)])
def test_other_shapes_and_types_are_refused(words):
    with pytest.raises(InputError, match=r"40 tokens need int32 \[2\]"):
        checked(words, 40)
