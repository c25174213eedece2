from __future__ import annotations

import pytest

from hotset.experts.bank import LOCK_CHUNK
from hotset.plan.bus import COPIES, copy_starts, mixed_rate


@pytest.mark.parametrize("size", [256, 2_700_032, 13_400_064, LOCK_CHUNK])
def test_copies_stay_within_one_page_locked_piece(size):
    starts = copy_starts(10 * LOCK_CHUNK, size)
    assert 1 <= len(starts) <= COPIES
    assert starts[-1] + size <= LOCK_CHUNK


def test_copies_stay_within_a_small_bank():
    assert list(copy_starts(1000, 300)) == [0, 300, 600]


def test_sizes_count_by_the_time_they_take():
    assert mixed_rate({100: 10.0, 300: 30.0}, (100, 300)) == 20.0
    assert mixed_rate({100: 10.0}, (100, 100, 100)) == 10.0
