"""BPE on the characters themselves (`tokenizer.ggml.model` "gemma4"): spaces are written U+2581, merges in the file's order, unknown text as bytes."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hotset.text.byte_level import plain_ids, plain_words, read_merges, usable_merges
from hotset.text.sentencepiece import SPACE, all_byte_ids, piece_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tokenizers

    from hotset.text.vocabulary import Vocabulary

# A literal U+2581 would come back as a space, so it goes as bytes; tokens never hold line ends among other characters.
PARTS = re.compile(f"\n+|{SPACE}+|[^\n{SPACE}]+")


class RawBPE:
    """Encodes plain text, and knows the bytes of each token."""

    prefixes_space = False

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._vocabulary = vocabulary
        self._merges = read_merges(metadata, vocabulary.path)
        self._byte_ids = all_byte_ids(vocabulary)

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text, no special tokens in it."""
        return [index for part in PARTS.findall(text) for index in self._encode_part(part)]

    def _encode_part(self, part: str) -> list[int]:
        if part[0] == SPACE:
            return [self._byte_ids[byte] for byte in part.encode()]
        # Runs of line ends are tokens that no merge makes in some files.
        whole = self._words.get(part) if part[0] == "\n" else None
        if whole is not None:
            return [whole]
        return plain_ids(self._encoder, part.replace(" ", SPACE))

    def token_bytes(self, index: int) -> bytes:
        """Return the bytes that a token stands for."""
        return piece_bytes(self._vocabulary, index)

    @cached_property
    def _words(self) -> dict[str, int]:
        return plain_words(self._vocabulary)

    @cached_property
    def _encoder(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer, models

        merges = usable_merges(self._merges, self._words, self._vocabulary.path)
        return Tokenizer(models.BPE(self._words, merges, byte_fallback=True))
