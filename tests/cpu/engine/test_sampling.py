from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hotset.config import SamplingParams
from hotset.engine.philox import philox, uniform
from hotset.engine.sampling import sample, top_k
from hotset.errors import HotsetError, InputError
from hotset.kernels.token_mask import pack
from hotset.kernels.weights import weights

ALL_OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
NUMERIC = [
    "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "seed", "max_tokens", "presence_penalty",
    "frequency_penalty",
]  # fmt: skip


def logits_of(*probabilities):
    return np.log(np.array(probabilities, np.float32))


def drawn(logits, n=400, recent=(), seed=0, **params):
    """Draw at n positions."""
    return {sample(logits, SamplingParams(**ALL_OFF | params), recent, seed, position) for position in range(n)}


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, expected):
    assert philox(counter, key).tolist() == expected


def test_philox_of_many_counters_equals_one_by_one():
    counters = np.random.default_rng(0).integers(0, 2**32, (5, 4))
    assert np.array_equal(philox(counters, [1, 2]), [philox(c, [1, 2]) for c in counters])


def test_uniform_is_below_one_and_depends_on_seed_position_and_draw():
    values = {uniform(seed, position, draw) for seed in (0, 2**63) for position in (0, 2**32) for draw in (0, 1)}
    assert len(values) == 8
    assert all(0 <= u < 1 and u * 2**24 == int(u * 2**24) for u in values)


def test_uniform_is_spread_evenly():
    values = [uniform(7, position) for position in range(2000)]
    counts, _ = np.histogram(values, 10, (0, 1))
    assert counts.min() > 150
    assert counts.max() < 250


def test_weights_are_exp_in_fixed_point():
    x = -np.random.default_rng(0).uniform(0, 30, 10_000).astype(np.float32)
    exact = np.exp(x.astype(np.float64)) * 2**32
    assert np.abs(weights(x) - exact).max() <= (2e-6 * exact + 1).max()
    assert np.all(np.abs(weights(x) - exact) <= 4e-6 * exact + 1)
    assert weights(np.array([0, -23, -1e38, -np.inf], np.float32)).tolist() == [2**32, 0, 0, 0]


def test_temperature_zero_takes_the_largest_and_of_equals_the_lowest_id():
    logits = np.array([0, 3, 1, 3], np.float32)
    assert drawn(logits, 5, temperature=0) == {1}
    assert drawn(np.zeros(9, np.float32), 5, temperature=0) == {0}


def test_draws_follow_the_probabilities():
    logits = logits_of(0.5, 0.3, 0.2)
    tokens = [sample(logits, SamplingParams(**ALL_OFF), (), 1, p) for p in range(3000)]
    np.testing.assert_allclose(np.bincount(tokens) / 3000, [0.5, 0.3, 0.2], atol=0.03)


def test_top_k_keeps_the_lowest_ids_at_its_border():
    assert top_k(np.array([1, 2, 1, 2, 1, 0], np.float32), 4).tolist() == [1, 3, 0, 2]
    assert drawn(np.zeros(6, np.float32), top_k=3) == {0, 1, 2}


@pytest.mark.parametrize("k", [0, 6, 7, 2**31 - 1])
def test_top_k_of_all_is_the_whole_order(k):
    assert top_k(np.array([1, 2, 1, 2, 1, 0], np.float32), k).tolist() == [1, 3, 0, 2, 4, 5]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.0, {0}), (0.49, {0}), (0.51, {0, 1}), (0.76, {0, 1, 2}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, kept):
    assert drawn(logits_of(0.5, 0.25, 0.15, 0.1), 600, top_p=top_p) == kept


@pytest.mark.parametrize(("min_p", "kept"), [(0.0, {0, 1, 2}), (0.3, {0, 1, 2}), (0.5, {0, 1}), (1.0, {0})])
def test_min_p_is_relative_to_the_largest(min_p, kept):
    assert drawn(logits_of(0.5, 0.3, 0.2), min_p=min_p) == kept


def test_cuts_look_at_the_distribution_before_temperature():
    assert drawn(logits_of(0.9, 0.06, 0.04), top_p=0.95, temperature=100.0) == {0, 1}


@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-3, 1e6])
@pytest.mark.parametrize("scale", [1e-3, 1, 1e4, 1e38])
def test_extreme_temperatures_and_logits_give_a_token(temperature, scale):
    logits = np.random.default_rng(3).normal(size=50).astype(np.float32) * np.float32(scale)
    tokens = drawn(logits, 20, temperature=temperature)
    assert tokens <= set(range(50))
    if temperature < 1e-3:
        assert tokens == {int(logits.argmax())}


def test_a_very_high_temperature_is_a_fair_choice():
    assert drawn(np.array([5, -5, 0], np.float32), temperature=1e6) == {0, 1, 2}


def test_forbidden_tokens_are_never_drawn():
    logits = np.array([-np.inf, 0, -np.inf, 0], np.float32)
    assert drawn(logits) == {1, 3}
    assert drawn(logits, logit_bias={1: -np.inf}) == {3}


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_mask_forbids_whatever_the_logits_and_biases_are(temperature):
    logits, mask = np.array([9, np.inf, 0, np.nan, 1], np.float32), pack(np.array([0, 0, 1, 1, 1], bool))
    params = SamplingParams(**ALL_OFF | {"temperature": temperature, "logit_bias": {0: 50, 2: 1.5}})
    assert {sample(logits, params, (), 0, n, mask) for n in range(60)} == ({2} if temperature == 0 else {2, 4})
    with pytest.raises(HotsetError, match="forbid fewer tokens"):
        sample(logits, params, (), 0, 0, pack(np.array([0, 0, 0, 1, 0], bool)))


def test_nan_counts_as_forbidden_and_infinities_as_equals():
    assert drawn(np.array([np.nan, 0, np.nan], np.float32)) == {1}
    assert drawn(np.array([np.inf, 0, np.inf], np.float32)) == {0, 2}


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_no_token_left_is_a_named_error(value, temperature):
    with pytest.raises(HotsetError, match="no token can be drawn: of 4 logits"):
        drawn(np.full(4, value, np.float32), 1, temperature=temperature)


def test_a_bias_outside_the_vocabulary_is_named():
    with pytest.raises(InputError, match="token id 4; ids of this model go from 0 to 3"):
        drawn(np.zeros(4, np.float32), 1, logit_bias={4: 1})


def greedy(logits, recent=(), **params):
    return sample(np.array(logits, np.float32), SamplingParams(temperature=0, **params), recent, 0, len(recent))


def test_the_repeat_penalty_divides_positive_and_multiplies_negative_logits():
    assert greedy([2.0, 1.5], [0], repeat_penalty=1.5) == 1
    assert greedy([-1.0, -1.4], [0], repeat_penalty=1.5) == 1
    assert greedy([2.0, 1.5], [1], repeat_penalty=0.5) == 1


def test_the_repeat_penalty_counts_a_token_once_and_the_frequency_penalty_each_time():
    assert greedy([4.0, 1.9], [0, 0], repeat_penalty=2.0) == 0
    assert greedy([4.0, 2.5], [0, 0], frequency_penalty=1.0) == 1
    assert greedy([4.0, 2.5], [0, 0], presence_penalty=1.0) == 0


def test_penalties_see_the_last_tokens_alone():
    assert greedy([2.0, 1.5], [0, 1, 1], repeat_penalty=2.0, repeat_last_n=2) == 0
    assert greedy([2.0, 1.5], [0, 1, 1], presence_penalty=5.0, repeat_last_n=0) == 0
    assert greedy([2.0, 1.5], [0], repeat_penalty=2.0, repeat_last_n=4096) == 1


def test_a_bias_is_added_before_penalties_as_in_llama_cpp():
    assert greedy([-1.0, 0.9], [0], logit_bias={0: 3.0}, repeat_penalty=2.0) == 0
    assert greedy([-1.0, 1.1], [0], logit_bias={0: 3.0}, repeat_penalty=2.0) == 1


def test_the_caller_keeps_its_logits():
    logits = np.array([np.nan, 1, 2], np.float32)
    drawn(logits, 1, recent=[1], repeat_penalty=2.0, logit_bias={2: 1})
    assert np.array_equal(logits, np.array([np.nan, 1, 2], np.float32), equal_nan=True)


ODD_NUMBERS = [-1, 0, 1e308, float("nan"), "1", None, True, [], 2**31, 2**63, float("inf"), -(10**400)]


def made_or_refused(name, value):
    try:
        return getattr(SamplingParams(**{name: value}), name)
    except InputError as e:
        return e


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("value", ODD_NUMBERS)
def test_every_odd_number_is_taken_as_it_is_or_named(name, value):
    result = made_or_refused(name, value)
    if isinstance(result, InputError):
        assert str(result).startswith(f"{name} must be ")
        assert " from " in str(result)
        assert repr(value)[:20] in str(result)
    elif value is not None:
        assert result == value
        assert not isinstance(value, bool)


def test_none_is_the_default():
    assert SamplingParams(**dict.fromkeys([*NUMERIC, "stop", "logit_bias"])) == SamplingParams()


def test_the_defaults_are_llama_cpps():
    p = SamplingParams()
    assert (p.temperature, p.top_k, p.top_p, p.min_p, p.repeat_penalty, p.repeat_last_n) == (
        0.8,
        40,
        0.95,
        0.05,
        1.0,
        64,
    )
    assert (p.seed, p.max_tokens, p.stop, p.logit_bias) == (None, None, (), {})


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("stop", 1, "1"),
        ("stop", ["a", ""], "none of them empty"),
        ("stop", ["x"] * 65, "at most 64"),
        ("stop", ["x", "y" * 5000], "5,000 characters"),
        ("logit_bias", [1], "map token ids"),
        ("logit_bias", {"1": 1}, "'1'"),
        ("logit_bias", {-1: 1}, "-1"),
        ("logit_bias", {True: 1}, "True"),
        ("logit_bias", {1: float("nan")}, "nan"),
        ("logit_bias", {1: float("inf")}, "inf"),
        ("logit_bias", {1: "x"}, "'x'"),
        ("logit_bias", dict.fromkeys(range(1025), 0), "at most 1024"),
    ],
)
def test_stop_texts_and_biases_are_checked(field, value, told):
    with pytest.raises(InputError, match=field) as e:
        SamplingParams(**{field: value})
    assert told in str(e.value)


def test_one_stop_text_may_stand_alone():
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_the_host_path_needs_neither_torch_nor_triton():
    code = "import sys, hotset.engine.sampling, hotset.model.routing; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
