from __future__ import annotations

import pytest
import torch

from hotset.kernels.fetch import FetchLaunch, fetch

POISON = 0xFF
SMALL = FetchLaunch(n_programs=3, block_words=128, num_warps=1)


def spans(n, span_bytes):
    return torch.randint(0, POISON, (n, span_bytes), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))


def addresses(buffer, rows):
    return torch.tensor([buffer[row].data_ptr() for row in rows], dtype=torch.int64)


def count(n):
    return torch.tensor([n], dtype=torch.int32)


@pytest.mark.parametrize("span_bytes", [256, 768, 1024, 1280, 6912])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_whole_spans_arrive_where_they_should_and_nowhere_else(n, span_bytes):
    bank, pool = spans(9, span_bytes), torch.full((11, span_bytes), POISON, dtype=torch.uint8)
    experts, slots = [8, 0, 5, 2, 7, 1, 3][:n], [10, 4, 0, 9, 2, 6, 7][:n]
    fetch(addresses(bank, experts), addresses(pool, slots), count(n), span_bytes, SMALL)
    expected = torch.full_like(pool, POISON)
    expected[slots] = bank[experts]
    assert torch.equal(pool, expected)


@pytest.mark.parametrize("cut", [0, 256, 1024, 1536])
def test_two_parts_are_the_whole_and_each_is_no_more_than_itself(cut):
    bank, pool = spans(5, 1536), torch.full((3, 1536), POISON, dtype=torch.uint8)
    lists = addresses(bank, [4, 1]), addresses(pool, [0, 2]), count(2)
    fetch(*lists, cut, SMALL)
    assert torch.equal(pool[[0, 2], :cut], bank[[4, 1], :cut])
    assert torch.all(pool[:, cut:] == POISON)
    fetch(*lists, 1536 - cut, SMALL, first=cut)
    assert torch.equal(pool[[0, 2]], bank[[4, 1]])
    assert torch.all(pool[1] == POISON)


def test_only_the_first_n_of_the_list_are_fetched():
    bank, pool = spans(4, 512), torch.full((4, 512), POISON, dtype=torch.uint8)
    fetch(addresses(bank, [0, 1, 2, 3]), addresses(pool, [0, 1, 2, 3]), count(2), 512, SMALL)
    assert torch.equal(pool[:2], bank[:2])
    assert torch.all(pool[2:] == POISON)


def test_nothing_missed_touches_nothing():
    # The list still holds addresses of an earlier request.
    bank, pool = spans(2, 512), torch.full((2, 512), POISON, dtype=torch.uint8)
    fetch(addresses(bank, [0, 1]), addresses(pool, [0, 1]), count(0), 512)
    assert torch.all(pool == POISON)


def test_the_default_launch_copies_a_span_of_an_odd_size():
    bank, pool = spans(2, 256 * 331), torch.full((2, 256 * 331), POISON, dtype=torch.uint8)
    fetch(addresses(bank, [1]), addresses(pool, [0]), count(1), 256 * 331)
    assert torch.equal(pool[0], bank[1])
    assert torch.all(pool[1] == POISON)
