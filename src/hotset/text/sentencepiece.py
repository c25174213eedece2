"""SentencePiece BPE (`tokenizer.ggml.model` "llama"): spaces are written U+2581, the pair with the best score merges first, unknown text falls back to bytes."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hotset.errors import FileError
from hotset.text.byte_level import RAW_TYPES, plain_ids, plain_words
from hotset.text.vocabulary import Vocabulary, read_array, read_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tokenizers

SPACE = "\u2581"
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
BYTE_NAMES = [f"<0x{byte:02X}>" for byte in range(256)]


class SentencePiece:
    """Encodes plain text, and knows the bytes of each token."""

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._vocabulary = vocabulary
        path = vocabulary.path
        self.prefixes_space = read_value(metadata, "add_space_prefix", path, bool, True)
        self._squeezes = read_value(metadata, "remove_extra_whitespaces", path, bool, False)
        scores = read_array(metadata, "scores", path, float, len(vocabulary.tokens))
        if scores is None:
            raise FileError(path, "tokenizer.ggml.scores", "is missing, and without it merges have no order")
        self._scores = scores
        byte_ids = all_byte_ids(vocabulary)
        self._space = SPACE if SPACE in vocabulary.ids else " "
        # A literal U+2581 would come back as a space, so it goes as bytes.
        self._literal_space = [byte_ids[byte] for byte in SPACE.encode()]

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text, no special tokens in it, that stands at the start or after a special token."""
        if self._squeezes:
            text = re.sub(" +", " ", text.strip(" "))
        if text and self.prefixes_space:
            text = " " + text
        ids: list[int] = []
        for n, part in enumerate(text.split(SPACE)):
            ids += self._literal_space if n else []
            if part:
                ids += plain_ids(self._encoder, part.replace(" ", self._space))
        return ids

    def token_bytes(self, index: int) -> bytes:
        """Return the bytes that a token stands for."""
        return piece_bytes(self._vocabulary, index)

    @cached_property
    def _encoder(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer, models

        words = plain_words(self._vocabulary)
        # A byte token must never come out of plain text by merging.
        pieces = {text: index for text, index in words.items() if not BYTE_TOKEN.fullmatch(text)}
        return Tokenizer(models.BPE(words, self._merges(pieces), byte_fallback=True))

    def _merges(self, pieces: Mapping[str, int]) -> list[tuple[str, str]]:
        """Every way to put a piece together from two others, best score of the whole first."""
        ranked = [
            (-self._scores[index], index, text[:cut], text[cut:])
            for text, index in pieces.items()
            for cut in range(1, len(text))
            if text[:cut] in pieces and text[cut:] in pieces
        ]
        ranked.sort()
        return [(left, right) for _, _, left, right in ranked]


def all_byte_ids(vocabulary: Vocabulary) -> list[int]:
    """Return the ids of <0x00> to <0xFF>; FileError where one is missing."""
    missing = [name for name in BYTE_NAMES if name not in vocabulary.ids]
    if missing:
        problem = f"lacks {len(missing)} of the 256 byte tokens, the first {missing[0]}: some text has no tokens"
        raise FileError(vocabulary.path, "tokenizer.ggml.tokens", problem, value=missing[0])
    return [vocabulary.ids[name] for name in BYTE_NAMES]


def piece_bytes(vocabulary: Vocabulary, index: int) -> bytes:
    """Return the bytes of a token whose text has U+2581 for spaces, or is a byte's name."""
    text, kind = vocabulary.text(index), vocabulary.types[index]
    if kind in RAW_TYPES:
        return text.encode("utf-8", "surrogateescape")
    byte = BYTE_TOKEN.fullmatch(text)
    if byte:
        return bytes.fromhex(byte[1])
    return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")
