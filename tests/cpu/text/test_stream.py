"""Streams of text: stop strings in pieces, characters in bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.errors import InputError
from hotset.text import Detokenizer, StopStrings, Tokenizer


def run(stops, pieces):
    """Return what goes out for each piece and at the end, and whether a stop was met."""
    stream = StopStrings(stops)
    sent = []
    for piece in pieces:
        text, stopped = stream.push(piece)
        sent.append(text)
        if stopped:
            return sent, True
    return [*sent, stream.flush()], False


@pytest.mark.parametrize(
    ("stops", "pieces", "sent", "stopped"),
    [
        (["DEFGHIJ"], ["DEF", "G", "HI", "J"], ["", "", "", ""], True),
        (["DEFGHIJ"], ["DEF", "G", "x"], ["", "", "DEFGx", ""], False),
        (["DEFGHIJ"], ["DEF"], ["", "DEF"], False),
        (["b", "abc"], ["a", "b", "c"], ["", "a"], True),
        (["abc", "bcd"], ["xab", "cd"], ["x", ""], True),
        (["aab"], ["aaa", "b"], ["a", ""], True),
        (["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", ""], True),
        ([], ["a", "b"], ["a", "b", ""], False),
    ],
)
def test_stop_strings_are_cut_out_of_pieces(stops, pieces, sent, stopped):
    assert (sent, stopped) == run(stops, pieces)


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    text=st.text("abc", max_size=30),
    cuts=st.lists(st.integers(0, 30)),
)
def test_pieces_do_not_matter(stops, text, cuts):
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    sent, stopped = run(stops, pieces)
    letters, letters_stopped = run(stops, text)

    assert ("".join(sent), stopped) == ("".join(letters), letters_stopped)
    assert stopped == any(stop in text for stop in stops)
    assert not any(stop in "".join(sent) for stop in stops)
    assert text.startswith("".join(sent))


def test_nothing_goes_out_after_a_stop():
    stream = StopStrings(["x"])

    assert stream.push("axb") == ("a", True)
    assert stream.push("c") == ("", True)
    assert stream.flush() == ""


@pytest.mark.parametrize("stop", ["", "x" * 1001, "x" * 5000, None, 3])
def test_impossible_stop_strings_are_refused(stop):
    with pytest.raises(InputError, match="stop string"):
        StopStrings(["fine", stop])


def test_parts_of_a_character_are_held_back(bpe_metadata):
    tokenizer = Tokenizer.from_metadata(bpe_metadata())
    ids = tokenizer.encode("é🦙!")
    stream = Detokenizer(tokenizer)

    assert [stream.push(index) for index in ids] == ["", "é", "", "", "", "🦙", "!"]
    assert stream.flush() == ""


def test_bytes_that_are_no_character_show_once_that_is_certain(bpe_metadata):
    tokenizer = Tokenizer.from_metadata(bpe_metadata())
    lead, letter = tokenizer.encode("é")[0], tokenizer.encode("a")[0]
    stream = Detokenizer(tokenizer)

    assert stream.push(lead) == ""
    assert stream.push(letter) == "\ufffda"
    assert stream.push(lead) == ""
    assert stream.flush() == "\ufffd"


def test_the_space_before_a_text_is_not_streamed(spm_metadata):
    tokenizer = Tokenizer.from_metadata(spm_metadata({"\u2581": -2.0, "a": -3.0, "\u2581a": -1.0}))
    stream = Detokenizer(tokenizer, special=False)

    assert [stream.push(index) for index in tokenizer.encode("a a")] == ["", "a", " a"]


def test_the_space_within_a_text_is_streamed(spm_metadata):
    tokenizer = Tokenizer.from_metadata(spm_metadata({"\u2581": -2.0, "a": -3.0, "\u2581a": -1.0}))
    prompt, answer = tokenizer.encode("a a")[:2], tokenizer.encode("a a")[2:]
    stream = Detokenizer(tokenizer, continues=not tokenizer.begins_text(prompt[-1]))

    assert [stream.push(index) for index in answer] == [" a"]
