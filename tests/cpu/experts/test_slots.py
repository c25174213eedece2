from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.errors import InputError
from hotset.experts.cache import ExpertCache
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheShape, CacheSize, equal_share, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1B", 1),
        ("6GiB", 6 * 1024**3),
        ("6gb", 6 * 1000**3),
        (" 500 MB ", 500_000_000),
        ("1.5TiB", 3 * 2**39),
        ("0KiB", 0),
    ],
)
def test_bytes_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "6", "6G", "-1GB", "1e3MB", "infGB", "GB", "6 GiB free", "9" * 5000 + "GB", "٣GB", "25%"]
)
def test_what_is_no_number_of_bytes_is_refused(text):
    with pytest.raises(InputError, match=r"--vram .* as in 8GiB"):
        parse_bytes(text, "--vram")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6GiB", CacheSize("bytes", Fraction(6 * 1024**3))),
        ("37.5%", CacheSize("percent", Fraction(75, 2))),
        ("100 %", CacheSize("percent", Fraction(100))),
        ("16slots", CacheSize("slots", Fraction(16))),
        ("1 slot", CacheSize("slots", Fraction(1))),
        ("AUTO", CacheSize("auto")),
        ("off", CacheSize("off")),
    ],
)
def test_cache_sizes_are_read(text, size):
    assert CacheSize.parse(text) == size


@pytest.mark.parametrize(
    "text", ["", "16", "101%", "-5%", "%", "1.5slots", "-1slots", "on", "none", "6 GiB 2", "nan%", "²%", None, 16]
)
def test_bad_cache_sizes_are_told_what_is_accepted(text):
    with pytest.raises(InputError, match=r"6GiB .*25%, 16slots, auto, off"):
        CacheSize.parse(text)


def test_percent_rounds_down_in_each_layer():
    assert CacheSize.parse("25%").n_slots((256, 256, 256), (32, 30, 3)) == (8, 7, 0)
    assert CacheSize.parse("37.5%").n_slots((256,), (64,)) == (24,)
    assert CacheSize.parse("100%").n_slots((256, 256), (60, 1)) == (60, 1)


def test_slots_stop_at_the_number_of_experts():
    assert CacheSize.parse("16slots").n_slots((256, 256), (60, 8)) == (16, 8)


def test_off_is_no_slots():
    assert CacheSize.parse("off").n_slots((256, 256), (60, 8), budget=10**9) == (0, 0)


def test_bytes_and_auto_share_equally():
    assert CacheSize.parse("10KiB").n_slots((256, 768), (16, 16)) == (10, 10)
    assert CacheSize.parse("auto").n_slots((256, 768), (16, 16), budget=10 * 1024) == (10, 10)
    assert CacheSize.parse("1TB").n_slots((256, 768), (16, 8)) == (16, 8)


def test_layers_of_different_counts_get_the_same_fraction():
    assert equal_share((256, 256), (64, 32), 256 * 48) == (32, 16)


def test_what_is_left_goes_to_the_first_layers():
    assert equal_share((256, 256, 256), (8, 8, 8), 256 * 7) == (3, 2, 2)
    assert equal_share((1024, 256), (8, 8), 512) == (0, 2)


@given(
    st.lists(st.tuples(st.integers(1, 20).map(lambda n: n * 256), st.integers(0, 40)), max_size=6),
    st.integers(0, 10**6),
)
def test_an_equal_share_fits_and_leaves_no_room_for_another_slot(layers, budget):
    spans = [span for span, _ in layers]
    experts = [n for _, n in layers]
    slots = equal_share(spans, experts, budget)
    used = sum(n * span for n, span in zip(slots, spans, strict=True))
    assert used <= budget
    for n, span, most in zip(slots, spans, experts, strict=True):
        assert 0 <= n <= most
        assert n == most or used + span > budget


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 10**5))
def test_equal_layers_differ_by_one_slot_at_most(n_layers, n_experts, budget):
    slots = equal_share([256] * n_layers, [n_experts] * n_layers, budget)
    assert max(slots) - min(slots) <= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"span_bytes": (300,)}, "multiples of 256"),
        ({"span_bytes": (0,)}, "multiples of 256"),
        ({"n_slots": (9,)}, "0 to 8"),
        ({"n_slots": (-1,)}, "0 to 8"),
        ({"k": 9}, "1 to 8"),
        ({"k": 0}, "1 to 8"),
        ({"max_rows": 0}, "at least 1"),
        ({"n_experts": (8, 8)}, "one of each per layer"),
    ],
)
def test_impossible_shapes_are_refused(changes, message):
    fields = {"span_bytes": (256,), "n_experts": (8,), "n_slots": (4,), "k": 2, "max_rows": 1}
    with pytest.raises(InputError, match=message):
        CacheShape(**(fields | changes))


def test_a_shape_knows_its_bytes():
    shape = CacheShape((256, 512), (8, 8), (4, 3), k=2, max_rows=4)
    assert shape.slot_bytes == 4 * 256 + 3 * 512
    assert shape.overflow_bytes == 4 * 2 * 512
    assert shape.odds_bytes == 2 * 2 * 9 * 8


@pytest.mark.parametrize(("n_layers", "n_experts"), [(1, 8), (2, 12), (5, 64)])
def test_a_shape_knows_what_prefetching_learns(n_layers, n_experts):
    shape = CacheShape((256,) * n_layers, (n_experts,) * n_layers, (4,) * n_layers, k=2, max_rows=4)
    ahead = ExpertCache(shape, Policy(), (0,) * n_layers, "cpu")._prefetcher
    assert shape.odds_bytes == (ahead.guesses.odds.nbytes if ahead else 0)
