"""Generating: where it stops, what is reused, and that a seed says all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hotset.errors import HotsetError, InputError
from hotset.kernels.token_mask import pack

PROMPT = "The Debian installer is"


def test_greedy_is_the_most_probable_token_of_each_step(demo):
    result = demo.generate(PROMPT, max_tokens=8, temperature=0)
    ids = demo.tokenize(PROMPT)
    for token in result.tokens:
        assert token == demo.logits(ids)[-1].argmax()
        ids.append(token)
    assert result.text == demo.detokenize(result.tokens)
    assert result.finish_reason == "length"


def test_text_and_its_ids_are_the_same_prompt(demo):
    ids = demo.tokenize(PROMPT)
    texts = {demo.generate(p, max_tokens=6, temperature=0).text for p in (PROMPT, ids, tuple(ids), np.array(ids))}
    assert len(texts) == 1


def test_a_seed_gives_the_same_text_and_is_told_where_none_was_given(demo):
    first = demo.generate(PROMPT, max_tokens=12, temperature=1.5)
    assert demo.generate(PROMPT, max_tokens=12, temperature=1.5, seed=first.seed).tokens == first.tokens
    others = {demo.generate(PROMPT, max_tokens=12, temperature=1.5, seed=seed).tokens for seed in range(4)}
    assert len(others) == 4


def test_a_stream_brings_the_text_piece_by_piece(demo):
    stream = demo.stream(PROMPT, max_tokens=10, temperature=0)
    pieces = list(stream)
    result = stream.result
    assert "".join(pieces) == result.text
    assert tuple(p.token for p in pieces if p.token is not None) == result.tokens
    assert len(result.tokens) == 10
    assert (result.prompt_tokens, result.reused_tokens) == (len(demo.tokenize(PROMPT)), 0)


def test_a_closed_stream_keeps_what_came(demo):
    stream = demo.stream(PROMPT, max_tokens=10, temperature=0)
    pieces = [next(stream) for _ in range(3)]
    stream.close()
    assert list(stream) == []
    assert stream.result.text == "".join(pieces)
    assert len(stream.result.tokens) == 3


def test_a_stop_string_ends_the_text_before_it(demo):
    whole = demo.generate(PROMPT, max_tokens=24, temperature=0).text
    for start in (5, 11, 20):
        stop = whole[start : start + 6]
        result = demo.generate(PROMPT, max_tokens=24, temperature=0, stop=["never written", stop])
        assert result.text == whole[: whole.index(stop)]
        assert result.finish_reason == "stop"


def test_what_might_have_become_a_stop_string_comes_at_the_end(demo):
    whole = demo.generate(PROMPT, max_tokens=10, temperature=0).text
    result = demo.generate(PROMPT, max_tokens=10, temperature=0, stop=whole[-3:] + "\0")
    assert (result.text, result.finish_reason) == (whole, "length")


def test_an_end_token_stops_and_adds_no_text(demo):
    (end,) = demo.end_ids & {0}
    result = demo.generate(PROMPT, temperature=0, logit_bias={end: 1e5})
    assert (result.tokens, result.text, result.finish_reason) == ((end,), "", "stop")


def test_no_tokens_may_be_asked_for(demo):
    stream = demo.stream(PROMPT, max_tokens=0)
    assert list(stream) == []
    assert (stream.result.tokens, stream.result.text, stream.result.finish_reason) == ((), "", "length")
    assert stream.result.tokens_per_s == 0


@pytest.mark.parametrize("n", [64, 65, 500])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(n, fresh, some_tokens):
    with pytest.raises(InputError, match=rf"the prompt has {n} tokens and the context 64; .*--ctx-size"):
        fresh(n_ctx=64).generate(some_tokens(n))


def test_the_end_of_the_context_ends_the_text(fresh, some_tokens):
    model = fresh(n_ctx=64)
    for n in (63, 60):
        result = model.generate(some_tokens(n), temperature=0, logit_bias={0: -np.inf})
        assert (len(result.tokens), result.finish_reason) == (64 - n, "length")


def test_the_context_is_the_models_own_up_to_4096_unless_given(fresh, demo):
    assert demo.n_ctx == 2048
    assert fresh(n_ctx=3000).n_ctx == 3000
    assert "longer than the 2048 the model was made for" in fresh(n_ctx=3000).notes[0]


@pytest.mark.parametrize("bad", [-1, 4096, 10**10, True, 1.0, "a", None], ids=repr)
def test_an_id_that_is_none_of_the_models_is_named(bad, demo):
    for call in (demo.generate, demo.logits, demo.detokenize):
        with pytest.raises(InputError, match="is not one of this model's; ids go from 0 to 4095"):
            call([1, bad, 2])


def test_an_empty_prompt_is_refused(demo):
    for empty in ("", []):
        with pytest.raises(InputError, match="the prompt is empty"):
            demo.generate(empty)


def test_logits_of_no_tokens_are_no_rows(demo):
    assert demo.logits([]).shape == (0, 4096)


@pytest.mark.parametrize("wanted", [[3], [-1], [0, 7]])
def test_logits_of_positions_that_are_not_there_are_refused(wanted, demo):
    with pytest.raises(InputError, match="position"):
        demo.logits([1, 2, 3], wanted=wanted)


def test_some_positions_are_rows_of_all(demo, some_tokens):
    tokens = some_tokens(300)
    everything = demo.logits(tokens)
    for wanted in ([299], [5, 4, 260, 5], [], range(100, 290, 7)):
        assert np.array_equal(demo.logits(tokens, wanted=wanted), everything[np.array(wanted, int)])


def test_an_unknown_mode_names_those_that_exist(demo):
    with pytest.raises(InputError, match="mode 'exact' is not one of fast, reference"):
        demo.logits([1], mode="exact")


def test_a_bias_for_a_token_that_is_not_there_is_refused(demo):
    with pytest.raises(InputError, match=r"token id 4096; ids go from 0 to 4095"):
        demo.generate(PROMPT, logit_bias={4096: 1.0})


def test_a_kept_session_computes_only_what_is_new_and_says_the_same(demo, some_tokens):
    shared_part, first, second = some_tokens(100), some_tokens(20, 1), some_tokens(20, 2)
    session = demo.session()
    demo.generate(shared_part + first, session=session, max_tokens=5, temperature=0)
    demo.reset_stats()
    again = demo.generate(shared_part + second, session=session, max_tokens=12, seed=3)
    assert again.reused_tokens == 100
    assert demo.stats().prompt.tokens == 20
    assert again.tokens == demo.generate(shared_part + second, max_tokens=12, seed=3).tokens


def test_the_same_prompt_again_computes_its_last_token(demo, some_tokens):
    session = demo.session()
    first = demo.generate(some_tokens(30), session=session, max_tokens=6, seed=1)
    again = demo.generate(some_tokens(30), session=session, max_tokens=6, seed=1)
    assert again.reused_tokens == 29
    assert again.tokens == first.tokens


def test_generated_tokens_are_reused_too(demo, some_tokens):
    session = demo.session()
    answer = demo.generate(some_tokens(10), session=session, max_tokens=8, seed=5)
    prompt = some_tokens(10) + list(answer.tokens) + some_tokens(4, 9)
    again = demo.generate(prompt, session=session, max_tokens=8, seed=6)
    assert again.reused_tokens == 18
    assert again.tokens == demo.generate(prompt, max_tokens=8, seed=6).tokens


def test_a_session_left_in_the_middle_goes_on_rightly(demo, some_tokens):
    session = demo.session()
    stream = demo.stream(some_tokens(10), session=session, seed=5)
    for _ in range(4):
        next(stream)
    stream.close()
    prompt = some_tokens(10) + list(stream.result.tokens) + [7, 8]
    again = demo.generate(prompt, session=session, max_tokens=8, seed=6)
    assert again.tokens == demo.generate(prompt, max_tokens=8, seed=6).tokens


def test_a_shorter_prompt_cuts_a_session_back(demo, some_tokens):
    session = demo.session()
    demo.generate(some_tokens(50), session=session, max_tokens=4, seed=5)
    again = demo.generate(some_tokens(50)[:20], session=session, max_tokens=8, seed=6)
    assert again.reused_tokens == 19
    assert again.tokens == demo.generate(some_tokens(50)[:20], max_tokens=8, seed=6).tokens


def test_a_session_may_have_a_context_of_its_own(demo, some_tokens):
    session = demo.session(n_ctx=16)
    with pytest.raises(InputError, match="the prompt has 16 tokens and the context 16"):
        demo.generate(some_tokens(16), session=session)
    assert len(demo.generate(some_tokens(12), session=session, logit_bias={0: -np.inf}).tokens) == 4


@pytest.mark.parametrize("n_ctx", [-1, 1, 1.5])
def test_a_session_without_room_is_refused(n_ctx, demo):
    with pytest.raises(InputError, match="at least 2 tokens"):
        demo.session(n_ctx=n_ctx)


def test_threads_of_the_caller_may_generate_side_by_side(demo, some_tokens):
    def answer(seed: int) -> tuple[int, ...]:
        return demo.generate(some_tokens(20, seed), max_tokens=8, seed=seed).tokens

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(answer, range(8))) == [answer(seed) for seed in range(8)]


def test_a_mask_is_asked_with_the_tokens_so_far_and_nothing_else_is_drawn(demo):
    asked = []

    def only_multiples(tokens):
        asked.append(tuple(tokens))
        return pack(np.arange(demo.config.n_vocab) % 5 == 0)

    result = demo.generate(PROMPT, mask=only_multiples, max_tokens=6, temperature=2.0, seed=1)
    assert asked == [result.tokens[:n] for n in range(len(result.tokens))]
    assert all(token % 5 == 0 for token in result.tokens)
    free = demo.generate(PROMPT, mask=lambda _tokens: None, max_tokens=6, temperature=2.0, seed=1)
    assert free.tokens == demo.generate(PROMPT, max_tokens=6, temperature=2.0, seed=1).tokens


def test_a_mask_that_allows_nothing_is_told(demo):
    with pytest.raises(HotsetError, match="no token can be drawn"):
        demo.generate(PROMPT, mask=lambda _tokens: pack(np.zeros(demo.config.n_vocab, bool)), max_tokens=2)
