from __future__ import annotations

import numpy as np
import pytest

from hotset.plan.dram import TASK_WORDS, buffer, read_rate, sum_words


@pytest.mark.parametrize("n", [1, TASK_WORDS, 3 * TASK_WORDS + 5])
def test_every_word_is_read_once(n):
    words = np.arange(n, dtype=np.int64)
    assert sum_words(words) == n * (n - 1) // 2


def test_a_rate_is_bytes_per_second_and_pages_are_present():
    words = buffer(1 << 20)
    assert words.nbytes == 1 << 20
    assert words.all()
    assert read_rate(words, 1, repeats=1) > 0
