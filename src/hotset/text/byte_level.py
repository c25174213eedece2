"""Byte-level BPE (`tokenizer.ggml.model` "gpt2"): every byte is written as one printable character, and merges join them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from hotset.errors import FileError, InputError
from hotset.text.vocabulary import TokenType, Vocabulary, read_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import tokenizers

    from hotset.text.pre import PreTokenizer

PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
CHARACTERS = {byte: chr(byte) for byte in PRINTABLE} | {
    byte: chr(256 + n) for n, byte in enumerate(byte for byte in range(256) if byte not in PRINTABLE)
}
BYTES = {character: bytes([byte]) for byte, character in CHARACTERS.items()}
RAW_TYPES = frozenset({TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN})


class ByteLevel:
    """Encodes plain text, and knows the bytes of each token."""

    prefixes_space = False

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any], pre: PreTokenizer) -> None:
        self._vocabulary = vocabulary
        self._pre = pre
        self._merges = read_merges(metadata, vocabulary.path)
        self._missing = [byte for byte, character in CHARACTERS.items() if character not in vocabulary.ids]

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text, no special tokens in it."""
        if self._missing:
            self._check_bytes(text)
        return plain_ids(self._encoder, text)

    def token_bytes(self, index: int) -> bytes:
        """Return the bytes that a token stands for."""
        text, kind = self._vocabulary.text(index), self._vocabulary.types[index]
        if kind in RAW_TYPES:
            return text.encode("utf-8", "surrogateescape")
        return b"".join(BYTES.get(c) or c.encode("utf-8", "surrogateescape") for c in text)

    def _check_bytes(self, text: str) -> None:
        lacking = set(text.encode()).intersection(self._missing)
        if lacking:
            raise InputError(
                f"text holds the byte 0x{min(lacking):02X}, for which this model's vocabulary has no token"
            )

    @cached_property
    def _encoder(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer, models, pre_tokenizers

        words = plain_words(self._vocabulary)
        model = models.BPE(words, usable_merges(self._merges, words, self._vocabulary.path))
        model.ignore_merges = self._pre.ignore_merges
        encoder = Tokenizer(model)
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        encoder.pre_tokenizer = pre_tokenizers.Sequence([*self._pre.cuts(), as_bytes])
        return encoder


def plain_ids(encoder: tokenizers.Tokenizer, text: str) -> list[int]:
    """Return the ids of plain text. Other threads run meanwhile, which the library's `encode` does not let them."""
    ids: list[int] = encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def is_text(token: str) -> bool:
    try:
        token.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain_words(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the tokens that plain text may become; a control token must never come out of it, so merging does not know them."""
    hidden = (TokenType.CONTROL, TokenType.UNKNOWN)
    types = vocabulary.types
    return {text: index for text, index in vocabulary.ids.items() if types[index] not in hidden and is_text(text)}


def read_merges(metadata: Mapping[str, Any], path: str) -> list[str]:
    merges = read_array(metadata, "merges", path, str)
    if merges is None:
        raise FileError(path, "tokenizer.ggml.merges", "is missing")
    return merges


def usable_merges(merges: Sequence[str], words: Mapping[str, int], path: str) -> list[tuple[str, str]]:
    """Split "left right"; pairs with a part or a result that is no token can never apply and are left out."""
    pairs = []
    for merge in merges:
        cut = merge.find(" ", 1)
        if cut < 0:
            raise FileError(path, "tokenizer.ggml.merges", f"holds {merge!r}, which is no pair", value=merge)
        left, right = merge[:cut], merge[cut + 1 :]
        if left in words and right in words and left + right in words:
            pairs.append((left, right))
    return pairs
