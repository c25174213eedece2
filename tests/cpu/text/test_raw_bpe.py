"""BPE on characters, as Gemma 4 has it, beside a plain loop that merges."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.errors import FileError
from hotset.text import Tokenizer

MERGES = ["a b", "\u2581 a", "b c", "\u2581a b", "ab c", "c c", "\u2581 \u2581", "cc c"]


def merged(text: str) -> list[str]:
    """Merge the first pair of the lowest rank until none is left."""
    pieces, ranks = list(text), {tuple(merge.split(" ")): rank for rank, merge in enumerate(MERGES)}
    while pairs := [(ranks[pair], at) for at, pair in enumerate(pairwise(pieces)) if pair in ranks]:
        at = min(pairs)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces


@given(st.text("abc ", max_size=20))
def test_characters_merge_in_the_order_of_the_file(raw_metadata, text):
    tokenizer = Tokenizer.from_metadata(raw_metadata(MERGES))
    ids = tokenizer.encode(text, add_special=False)

    assert merged(text.replace(" ", "\u2581")) == [tokenizer.token_text(index) for index in ids]
    assert text == tokenizer.decode(ids)


@given(st.text())
def test_any_text_survives_the_round_trip(raw_metadata, text):
    tokenizer = Tokenizer.from_metadata(raw_metadata(MERGES))

    assert text == tokenizer.decode(tokenizer.encode(text, add_special=False))


def test_no_space_is_put_before_a_text(raw_metadata):
    tokenizer = Tokenizer.from_metadata(raw_metadata(MERGES))

    assert [tokenizer.token_text(i) for i in tokenizer.encode("<bos>a", parse_special=True)] == ["<bos>", "a"]


def test_a_run_of_line_ends_is_a_token_though_no_merge_makes_it(raw_metadata):
    tokenizer = Tokenizer.from_metadata(raw_metadata(extra={"\n": 1, "\n\n\n": 1}))
    pieces = [tokenizer.token_text(i) for i in tokenizer.encode("a\n\n\n b\n\nc", add_special=False)]

    assert pieces == ["a", "\n\n\n", "\u2581", "b", "\n", "\n", "c"]


def test_what_has_no_token_goes_as_bytes(raw_metadata):
    tokenizer = Tokenizer.from_metadata(raw_metadata())

    assert [tokenizer.token_text(i) for i in tokenizer.encode("é", add_special=False)] == ["<0xC3>", "<0xA9>"]


def test_gemma_gets_its_bos_though_the_file_says_no(raw_metadata):
    assert Tokenizer.from_metadata(raw_metadata(add_bos_token=False)).encode("a")[0] == 2


def test_other_models_name_this_way_by_pre(raw_metadata):
    other = Tokenizer.from_metadata(raw_metadata(MERGES, model="gpt2", pre="sarvam-moe"))
    gemma = Tokenizer.from_metadata(raw_metadata(MERGES))

    assert gemma.encode("ab abc", add_special=False) == other.encode("ab abc")


@pytest.mark.parametrize(("key", "value"), [("merges", None), ("merges", ["ab"]), ("tokens", ["a"] * 263)])
def test_damage_is_named(raw_metadata, key, value):
    with pytest.raises(FileError, match=f"tokenizer.ggml.{key}"):
        Tokenizer.from_metadata(raw_metadata() | {f"tokenizer.ggml.{key}": value}).encode("ab")
