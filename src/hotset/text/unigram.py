"""Unigram (`tokenizer.ggml.model` "t5"): of all ways to cut a text into pieces the one with the highest sum of scores; spaces are written U+2581."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hotset.errors import FileError
from hotset.text.byte_level import is_text
from hotset.text.charsmap import CharsMap
from hotset.text.sentencepiece import BYTE_NAMES, SPACE, piece_bytes
from hotset.text.vocabulary import TokenType, Vocabulary, read_array, read_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tokenizers

CHARSMAP = "precompiled_charsmap"
PIECES = (TokenType.NORMAL, TokenType.UNUSED)


class Unigram:
    """Encodes plain text, and knows the bytes of each token."""

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._vocabulary = vocabulary
        path = vocabulary.path
        self.prefixes_space = read_value(metadata, "add_space_prefix", path, bool, False)
        self._squeezes = read_value(metadata, "remove_extra_whitespaces", path, bool, False)
        scores = read_array(metadata, "scores", path, float, len(vocabulary.tokens))
        if scores is None:
            raise FileError(path, "tokenizer.ggml.scores", "is missing, and without it no way to cut is better")
        self._scores = scores
        if "unk" not in vocabulary.roles:
            raise FileError(path, "tokenizer.ggml.unknown_token_id", "names no token, and text may be unknown")
        self._unknown = vocabulary.roles["unk"]
        byte_ids = [vocabulary.ids.get(name) for name in BYTE_NAMES]
        self._byte_ids = [index for index in byte_ids if index is not None] if None not in byte_ids else []
        self._normalize = read_charsmap(metadata, path)

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text, no special tokens in it, that stands at the start or after a special token."""
        if self._normalize is not None:
            try:
                text = self._normalize.normalize(text)
            except ValueError as error:
                raise charsmap_error(self._vocabulary.path, error) from error
        if self._squeezes:
            text = re.sub(" +", " ", text.strip(" "))
        if text and self.prefixes_space:
            text = " " + text
        # The library takes a space, which no piece holds by now, for the unknown piece.
        text = text.replace(" ", SPACE)
        found = self._encoder.encode_batch([text], add_special_tokens=False)[0]  # see plain_ids
        ids: list[int] = []
        for piece, (start, end) in zip(found.ids, found.offsets, strict=True):
            unknown = piece == 0
            ids += self._unknown_ids(text[start:end]) if unknown else [self._pieces[piece]]
        return ids

    def _unknown_ids(self, text: str) -> list[int]:
        return [self._byte_ids[byte] for byte in text.encode()] if self._byte_ids else [self._unknown]

    def token_bytes(self, index: int) -> bytes:
        """Return the bytes that a token stands for."""
        return piece_bytes(self._vocabulary, index)

    @cached_property
    def _pieces(self) -> list[int]:
        """Ids by their number in the encoder: the unknown piece first, then those that plain text may become."""
        texts, types = self._vocabulary.tokens, self._vocabulary.types
        ids = [i for text, i in self._vocabulary.ids.items() if types[i] in PIECES and is_text(text)]
        return [self._unknown, *sorted(i for i in ids if " " not in texts[i])]

    @cached_property
    def _encoder(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer, models

        scored = [(self._vocabulary.tokens[i], self._scores[i]) for i in self._pieces[1:]]
        return Tokenizer(models.Unigram([(" ", 0.0), *scored], unk_id=0))


def read_charsmap(metadata: Mapping[str, Any], path: str) -> CharsMap | None:
    numbers = read_array(metadata, CHARSMAP, path, int)
    if not numbers:
        return None
    try:
        return CharsMap(bytes(number & 0xFF for number in numbers))  # some files store them with a sign
    except ValueError as error:
        raise charsmap_error(path, error) from error


def charsmap_error(path: str, error: ValueError) -> FileError:
    return FileError(path, f"tokenizer.ggml.{CHARSMAP}", str(error))
