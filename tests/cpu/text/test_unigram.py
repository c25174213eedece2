"""Unigram vocabularies beside a plain search for the best way to cut, and the normalisation that comes with them."""

from __future__ import annotations

import contextlib
import struct
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.normalizers import Precompiled

from hotset.errors import FileError
from hotset.text import Tokenizer
from hotset.text.charsmap import CharsMap

PIECES = {
    "\u2581": -2.0,
    "a": -3.0,
    "b": -3.5,
    "c": -9.0,
    "ab": -4.0,
    "\u2581a": -3.0,
    "bc": -4.5,
    "abc": -7.0,
    "\u2581ab": -7.5,
}
BYTE = 6
BYTES = {f"<0x{byte:02X}>": BYTE for byte in range(256)}


def best(text: str) -> float:
    """The highest sum of scores of all ways to cut `text`."""
    sums = [0.0, *[-1e9] * len(text)]
    for end in range(1, len(text) + 1):
        cuts = [(start, PIECES[text[start:end]]) for start in range(end) if text[start:end] in PIECES]
        sums[end] = max(sums[start] + score for start, score in cuts)
    return sums[-1]


def texts(tokenizer, ids):
    return [tokenizer.token_text(index) for index in ids]


@given(st.text("abc ", max_size=20))
def test_the_best_cut_is_found(unigram_metadata, text):
    tokenizer = Tokenizer.from_metadata(unigram_metadata(PIECES))
    ids = tokenizer.encode(text, add_special=False)
    prefixed = (" " + text if text else "").replace(" ", "\u2581")

    assert prefixed == "".join(texts(tokenizer, ids))
    assert best(prefixed) == sum(PIECES[piece] for piece in texts(tokenizer, ids))
    assert text == tokenizer.decode(ids)


def test_eos_follows_by_default_and_no_bos_goes_before(unigram_metadata):
    tokenizer = Tokenizer.from_metadata(unigram_metadata(PIECES))

    assert texts(tokenizer, tokenizer.encode("a")) == ["\u2581a", "</s>"]
    assert tokenizer.end_ids == {1}


def test_unknown_text_is_one_unknown_token(unigram_metadata):
    tokenizer = Tokenizer.from_metadata(unigram_metadata(PIECES))

    assert texts(tokenizer, tokenizer.encode("a🦙éb", add_special=False)) == ["\u2581a", "<unk>", "b"]


@given(st.text())
def test_unknown_text_falls_back_to_bytes_where_all_are_there(unigram_metadata, text):
    tokenizer = Tokenizer.from_metadata(unigram_metadata(PIECES, BYTES))

    assert texts(tokenizer, tokenizer.encode("a🦙", add_special=False))[1:] == ["<0xF0>", "<0x9F>", "<0xA6>", "<0x99>"]
    assert text.replace("\u2581", " ") == tokenizer.decode(tokenizer.encode(text, add_special=False))


@pytest.mark.parametrize("text", ["</s>", "<unk>", "<0x41>", "<pad>a"])
def test_control_and_byte_tokens_do_not_come_out_of_text(unigram_metadata, text):
    tokenizer = Tokenizer.from_metadata(unigram_metadata(PIECES | {"<": -5.0, "x": -5.0}, BYTES))
    ids = tokenizer.encode(text, add_special=False)

    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.id_of("<0x41>") not in ids[1:2]
    assert text == tokenizer.decode(ids)


def test_spaces_follow_the_flags(unigram_metadata):
    plain = Tokenizer.from_metadata(unigram_metadata(PIECES, add_space_prefix=False))
    squeezing = Tokenizer.from_metadata(unigram_metadata(PIECES, remove_extra_whitespaces=True))

    assert texts(plain, plain.encode("a a", add_special=False)) == ["a", "\u2581a"]
    assert squeezing.decode(squeezing.encode("  a   b ", add_special=False)) == "a b"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scores", None),
        ("scores", [1.0]),
        ("precompiled_charsmap", [1, 2]),
        ("precompiled_charsmap", [255] * 8),
        ("precompiled_charsmap", [0] * 8),
        ("precompiled_charsmap", "text"),
    ],
)
def test_damage_is_named(unigram_metadata, key, value):
    with pytest.raises(FileError, match=f"tokenizer.ggml.{key}"):
        Tokenizer.from_metadata(unigram_metadata(PIECES, **{key: value}))


def charsmap(replacements: dict[str, str]) -> bytes:
    """Write replacements as SentencePiece does, children as near as they fit."""
    strings, starts, root = b"", {}, {}
    for found, text in replacements.items():
        starts[found.encode()] = len(strings)
        strings += text.encode() + b"\0"
        node = root
        for byte in found.encode():
            node = node.setdefault(byte, {})
        node[0] = starts[found.encode()]
    units, bases = {0: 0}, set()

    def place(index: int, node: dict) -> None:
        # A node's children are known by their label alone, so no two nodes may have theirs around the same place.
        free = (n for n in count(1) if index ^ n not in bases and all(index ^ n ^ label not in units for label in node))
        offset = next(free)
        bases.add(index ^ offset)
        units[index] |= offset << 10 | (1 << 8 if 0 in node else 0)
        units.update({index ^ offset ^ label: label for label in node})
        for label, child in node.items():
            if label == 0:
                units[index ^ offset] = child | 1 << 31
            else:
                place(index ^ offset ^ label, child)

    place(0, root)
    table = [units.get(index, 0) for index in range(max(units) + 1)]
    return struct.pack("<I", 4 * len(table)) + struct.pack(f"<{len(table)}I", *table) + strings


def replaced(text: str, replacements: dict[str, str]) -> str:
    """Replace the longest match, again and again."""
    out, at = "", 0
    while at < len(text):
        found = max((key for key in replacements if text.startswith(key, at)), key=len, default=text[at])
        out, at = out + replacements.get(found, found), at + len(found)
    return out


@given(
    st.dictionaries(st.text("aé漢🦙x", min_size=1, max_size=3), st.text("bz \u2581", max_size=3), min_size=1),
    st.text("aé漢🦙xq"),
)
def test_the_longest_beginning_is_replaced(replacements, text):
    assert replaced(text, replacements) == CharsMap(charsmap(replacements)).normalize(text)


def test_the_library_reads_the_same_map():
    blob = charsmap({"ﬁ": "fi", "\t": " ", "①": "1", "\u200b": ""})
    text = "ﬁn\t①\u200b."

    assert CharsMap(blob).normalize(text) == Precompiled(blob).normalize_str(text) == "fin 1."


@pytest.mark.parametrize("signed", [False, True])
def test_a_text_is_normalised_before_it_is_cut(unigram_metadata, signed):
    blob = charsmap({"É": "a", "\n": " ", "é": ""})
    stored = [byte - 256 if signed and byte > 127 else byte for byte in blob]
    tokenizer = Tokenizer.from_metadata(unigram_metadata(PIECES, precompiled_charsmap=stored))

    assert tokenizer.decode(tokenizer.encode("Ébé\nc", add_special=False)) == "ab c"


@given(st.binary(min_size=4, max_size=64), st.text())
def test_a_damaged_map_is_an_error_and_nothing_worse(blob, text):
    damaged = struct.pack("<I", len(blob) // 8 * 4) + blob

    with contextlib.suppress(ValueError):
        CharsMap(damaged).normalize(text)
