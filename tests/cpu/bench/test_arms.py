from __future__ import annotations

import pytest

from hotset.bench.arms import ARM_BYTES, RESIDENT, Arm, placed, sweep, turns
from hotset.errors import InputError, PlacementError
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheShape

SHAPE = CacheShape((256, 512), (8, 8), (0, 0), 2, 8)
LRU, LRFU = Policy.parse("lru"), Policy.parse("lrfu")


def test_every_combination_is_an_arm_and_off_is_one():
    found = sweep(["25%", "off"], ["lru", "lrfu:16"], [None])
    assert found == [Arm("25%", LRU), Arm("25%", LRFU), Arm("off", LRU)]
    assert [str(arm) for arm in sweep(["25%"], ["lrfu", "product"], [None])] == ["25% lrfu:16", "25% product"]


def test_the_same_arm_twice_is_one():
    assert len(sweep(["25%", "25%"], ["lrfu", "lrfu:16"], [1, 2])) == 2


def test_an_unknown_policy_is_an_error():
    with pytest.raises(InputError):
        sweep(["25%"], ["best"], [None])


def test_arms_of_one_size_have_the_same_slots_and_bytes():
    found = [placed(Arm("50%", p), SHAPE, 10**9, 1000) for p in (LRU, LRFU)]
    assert found[0].n_slots == found[1].n_slots == (4, 4)
    assert found[0].n_bytes == found[1].n_bytes == 4 * 768 + 1000 + ARM_BYTES


def test_slots_take_nothing_of_a_cpu():
    arm = placed(Arm("auto", LRU), SHAPE, None, 1000)
    assert (arm.n_slots, arm.n_bytes) == ((2, 2), 0)


def test_auto_takes_what_is_left():
    assert placed(Arm("auto", LRU), SHAPE, ARM_BYTES + 1000 + 768, 1000).n_slots == (1, 1)
    assert placed(Arm("auto", LRU), SHAPE, 10**9, 1000).n_slots == (8, 8)


def test_an_arm_that_does_not_fit_is_an_error_that_says_by_how_much():
    with pytest.raises(PlacementError, match="100% static takes"):
        placed(RESIDENT, SHAPE, ARM_BYTES + 1000, 1000)


def test_arms_run_together_where_all_fit_and_one_by_one_otherwise():
    arms = [placed(Arm(size, LRU), SHAPE, 10**9, 0) for size in ("25%", "100%", "off")]
    total = sum(a.n_bytes for a in arms)
    assert turns(arms, total) == [arms]
    assert turns(arms, None) == [arms]
    assert turns(arms, total - 1) == [[arms[1]], [arms[0]], [arms[2]]]
