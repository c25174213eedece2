"""Tokenizers of the shared vocabularies, built once, and small vocabularies made by hand."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from hotset.gguf import open_gguf
from hotset.text import Tokenizer
from hotset.text.byte_level import CHARACTERS

if TYPE_CHECKING:
    from pathlib import Path

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SEPARATOR = "\n__ggml_vocab_test__\n"


def golden(shared: Path, name: str) -> list[tuple[str, list[int]]]:
    """Texts and their ids."""
    path = shared / "vocab" / f"ggml-vocab-{name}.gguf"
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split(SEPARATOR)
    lines = path.with_suffix(".gguf.out").read_text().split("\n")
    return [(text, [int(index) for index in line.split()]) for text, line in zip(texts, lines, strict=False)]


@pytest.fixture(scope="session")
def vocabulary(shared):
    """Metadata and tokenizer of one of the shared vocabularies."""

    @cache
    def load(name: str):
        path = shared / "vocab" / f"ggml-vocab-{name}.gguf"
        metadata = dict(open_gguf(path).metadata)
        return metadata, Tokenizer.from_metadata(metadata, path=path.name)

    return load


@pytest.fixture(scope="session")
def tokenizer_of(vocabulary):
    return lambda name: vocabulary(name)[1]


@pytest.fixture(scope="session")
def goldens(shared):
    return lambda name: golden(shared, name)


def byte_level(extra: dict[str, int] | None = None, merges=(), **keys) -> dict[str, object]:
    """Metadata of a byte-level vocabulary: 256 bytes, the results of `merges`, and `extra` tokens with their types."""
    extra = extra or {}
    merged = [merge.replace(" ", "") for merge in merges]
    tokens = [*(CHARACTERS[byte] for byte in range(256)), *merged, *extra]
    types = [*[NORMAL] * (256 + len(merged)), *extra.values()]
    return with_keys("gpt2", tokens, types, {"merges": list(merges), "pre": "gpt-2"} | keys)


def sentence_piece(pieces: dict[str, float] | None = None, extra: dict[str, int] | None = None, **keys):
    """Metadata of a SentencePiece vocabulary: <unk>, <s>, </s>, 256 bytes, `pieces` with scores, and `extra` tokens with types."""
    pieces, extra = pieces or {"\u2581": 0.0}, extra or {}
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *pieces, *extra]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), *extra.values()]
    scores = [*[0.0] * 259, *pieces.values(), *[0.0] * len(extra)]
    return with_keys("llama", tokens, types, {"scores": scores} | keys)


def raw_bpe(merges=(), extra: dict[str, int] | None = None, **keys):
    """Metadata of a vocabulary like Gemma 4's: <pad>, <eos>, <bos>, 256 bytes, the characters and results of `merges`, and `extra`."""
    extra = extra or {}
    parts = [part for merge in merges for part in merge.split(" ")]
    pieces = dict.fromkeys([*"\u2581abc", *parts, *(merge.replace(" ", "") for merge in merges)])
    tokens = ["<pad>", "<eos>", "<bos>", *BYTES, *pieces, *extra]
    types = [CONTROL] * 3 + [BYTE] * 256 + [NORMAL] * len(pieces) + [*extra.values()]
    given = {"merges": list(merges), "bos_token_id": 2, "eos_token_id": 1} | keys
    return with_keys("gemma4", tokens, types, given)


def unigram(pieces: dict[str, float], extra: dict[str, int] | None = None, **keys):
    """Metadata of a Unigram vocabulary: <pad>, </s>, <unk>, `pieces` with scores, and `extra` tokens with types."""
    extra = extra or {}
    tokens = ["<pad>", "</s>", "<unk>", *pieces, *extra]
    types = [CONTROL, CONTROL, UNKNOWN, *[NORMAL] * len(pieces), *extra.values()]
    scores = [0.0] * 3 + [*pieces.values()] + [0.0] * len(extra)
    return with_keys("t5", tokens, types, {"scores": scores, "add_space_prefix": True} | keys)


def with_keys(model: str, tokens: list[str], types: list[int], keys: dict[str, object]) -> dict[str, object]:
    given = {"model": model, "tokens": tokens, "token_type": types} | keys
    return {f"tokenizer.ggml.{key}": value for key, value in given.items() if value is not None}


@pytest.fixture(scope="session")
def bpe_metadata():
    return byte_level


@pytest.fixture(scope="session")
def spm_metadata():
    return sentence_piece


@pytest.fixture(scope="session")
def raw_metadata():
    return raw_bpe


@pytest.fixture(scope="session")
def unigram_metadata():
    return unigram
