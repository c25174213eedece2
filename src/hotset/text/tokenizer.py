"""Text to token ids and back, from the metadata of a model file alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn, Protocol

from hotset.errors import InputError, UnsupportedError
from hotset.text.byte_level import ByteLevel, is_text
from hotset.text.marks import ControlTexts
from hotset.text.pre import PRE_TOKENIZERS, PreTokenizer
from hotset.text.raw_bpe import RawBPE
from hotset.text.sentencepiece import SentencePiece
from hotset.text.unigram import Unigram
from hotset.text.vocabulary import TokenType, Vocabulary, read_array, read_value, warn

NO_TOKENIZER = frozenset({"", "none", "no_vocab", "test"})
RAW_MODEL = "gemma4"
MODELS = "'gpt2' (byte-level BPE), 'gemma4' (BPE), 'llama' (SentencePiece) and 't5' (Unigram)"
PARSED_ON_REQUEST = (TokenType.CONTROL, TokenType.UNKNOWN)


class Codec(Protocol):
    """One kind of tokenizer: what it does with plain text, and the bytes of its tokens."""

    prefixes_space: bool

    def encode(self, text: str) -> list[int]: ...
    def token_bytes(self, index: int) -> bytes: ...


class NoTokens(Sequence[str]):
    """Vocabulary and codec of a file without a tokenizer: the model runs on token ids."""

    prefixes_space = False

    def __init__(self, path: str, n_tokens: int) -> None:
        self._path = path
        self._n_tokens = n_tokens

    def __len__(self) -> int:
        return self._n_tokens

    def __getitem__(self, index: Any) -> NoReturn:
        raise self._error(f"token {index} has no text")

    def encode(self, text: str) -> NoReturn:
        raise self._error(f"text of {len(text):,} characters cannot be encoded")

    def token_bytes(self, index: int) -> NoReturn:
        raise self._error(f"token {index} has no text")

    def _error(self, consequence: str) -> UnsupportedError:
        problem = f"the file has no tokenizer, so {consequence}"
        return UnsupportedError(self._path, "tokenizer.ggml.model", problem, hint="feed token ids instead of text")


class Tokenizer:
    """The tokenizer of one model file. What is slow to build (the merges) is built when text is first encoded."""

    def __init__(self, vocabulary: Vocabulary, codec: Codec, *, add_bos: bool, add_eos: bool) -> None:
        self._vocabulary = vocabulary
        self._codec = codec
        self.bos_id = vocabulary.roles.get("bos")
        self.eos_id = vocabulary.roles.get("eos")
        self.eot_id = vocabulary.roles.get("eot")
        self.eom_id = vocabulary.roles.get("eom")
        self.unk_id = vocabulary.roles.get("unk")
        self.pad_id = vocabulary.roles.get("pad")
        self.add_bos = add_bos and self.bos_id is not None
        self.add_eos = add_eos and self.eos_id is not None
        self.end_ids = vocabulary.end_ids
        self.special_ids = frozenset(vocabulary.of_type(*PARSED_ON_REQUEST))

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], *, path: str = "model file", pre: str | None = None
    ) -> Tokenizer:
        """Read `tokenizer.ggml.*`. `path` names the file in messages; `pre` overrides `tokenizer.ggml.pre`."""
        model = read_value(metadata, "model", path, str, "none")
        if model in NO_TOKENIZER:
            absent = NoTokens(path, vocab_size(metadata, path))
            return cls(Vocabulary(path, absent, [], {}, {}), absent, add_bos=False, add_eos=False)
        if model in ("gpt2", RAW_MODEL):
            splitting = pre_tokenizer(metadata, path, RAW_MODEL if model == RAW_MODEL else pre)
            vocabulary = Vocabulary.from_metadata(metadata, path, {})
            raw = splitting.raw
            codec: Codec = RawBPE(vocabulary, metadata) if raw else ByteLevel(vocabulary, metadata, splitting)
            add_bos, add_eos = splitting.add_bos, False
        elif model == "llama":
            vocabulary = Vocabulary.from_metadata(metadata, path, {"unk": 0, "bos": 1, "eos": 2})
            codec, add_bos, add_eos = SentencePiece(vocabulary, metadata), True, False
        elif model == "t5":
            vocabulary = Vocabulary.from_metadata(metadata, path, {"pad": 0, "eos": 1, "unk": 2})
            codec, add_bos, add_eos = Unigram(vocabulary, metadata), False, True
        else:
            problem = f"is {model!r}; this build knows {MODELS}"
            hint = "use a file with one of these tokenizers"
            raise UnsupportedError(path, "tokenizer.ggml.model", problem, value=model, hint=hint)
        add_bos = read_value(metadata, "add_bos_token", path, bool, add_bos)
        return cls(
            vocabulary,
            codec,
            # Early gemma4 files say false, and the model is lost without.
            add_bos=add_bos or model == RAW_MODEL,
            add_eos=read_value(metadata, "add_eos_token", path, bool, add_eos),
        )

    @property
    def n_vocab(self) -> int:
        """How many ids there are."""
        return len(self._vocabulary.tokens)

    @property
    def prefixes_space(self) -> bool:
        """Whether a text begins with a space of the tokenizer's own, which decoding takes away again."""
        return self._codec.prefixes_space

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Return the ids of `text`.

        `add_special` puts BOS before and EOS after it where the model wants them (never twice). `parse_special` takes control
        tokens written out in the text for what they name; without it they are text like any other.
        """
        check_text(text)
        ids = self._encode_parts(self._cut(text, parse_special))
        return self._add_special(ids) if add_special else ids

    def encode_marked(self, text: str, marks: Mapping[int, str]) -> list[int]:
        """Return the ids of `text` with control tokens parsed, except where a character of `marks` stands in one.

        `marks` is a table for `str.translate`; its characters become what they stand for and are plain text.
        """
        check_text(text)
        parts: list[str | int] = []
        for part in self._cut(text, parse_special=True):
            parts += self._cut(part.translate(marks), parse_special=False) if isinstance(part, str) else [part]
        return self._encode_parts(parts)

    def decode(self, ids: Iterable[int], *, special: bool = True) -> str:
        """Return the text of `ids`, bytes that are no UTF-8 as U+FFFD; without `special`, control tokens are left out."""
        running = TokenBytes(self, special=special)
        return b"".join(map(running.push, ids)).decode("utf-8", "replace")

    def token_bytes(self, index: int) -> bytes:
        """Return the bytes that token `index` stands for; they may be a part of a character."""
        return self._codec.token_bytes(index)

    def token_text(self, index: int) -> str:
        """Return token `index` as the file spells it."""
        return self._vocabulary.text(index)

    def id_of(self, token_text: str) -> int | None:
        """Return the id of the token that the file spells so, if there is one."""
        return self._vocabulary.ids.get(token_text)

    def begins_text(self, index: int) -> bool:
        """Whether text after token `index` begins anew: it is a control or user-defined token."""
        return self._vocabulary.types[index] in (*PARSED_ON_REQUEST, TokenType.USER_DEFINED)

    @cached_property
    def control_texts(self) -> ControlTexts:
        """The spellings that `parse_special` looks for."""
        return ControlTexts(text for text, index in self._spellings if index in self.special_ids)

    @cached_property
    def _spellings(self) -> Sequence[tuple[str, int]]:
        """Tokens that are cut out of text before anything else, longest first."""
        ids = self._vocabulary.of_type(*PARSED_ON_REQUEST, TokenType.USER_DEFINED)
        spelled = [(self._vocabulary.tokens[index], index) for index in ids]
        return sorted((pair for pair in spelled if is_text(pair[0])), key=lambda pair: -len(pair[0].encode()))

    def _cut(self, text: str, parse_special: bool) -> list[str | int]:
        parts: list[str | int] = [text] if text else []
        for spelling, index in self._spellings:
            if spelling in text and (parse_special or index not in self.special_ids):
                parts = [piece for part in parts for piece in cut_out(part, spelling, index)]
        return parts

    def _encode_parts(self, parts: Iterable[str | int]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            ids += [part] if isinstance(part, int) else self._codec.encode(part)
        return ids

    def _add_special(self, ids: list[int]) -> list[int]:
        before = [self.bos_id] if self.add_bos and ids[:1] != [self.bos_id] else []
        after = [self.eos_id] if self.add_eos and ids[-1:] != [self.eos_id] else []
        return [index for index in (*before, *ids, *after) if index is not None]


class TokenBytes:
    """The bytes of a sequence of ids, one id at a time; takes away the spaces that the tokenizer puts before a text."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._begins = not continues

    def push(self, index: int) -> bytes:
        """Return the bytes of the next id."""
        raw = self._tokenizer.token_bytes(index)
        if self._tokenizer.prefixes_space:
            if self._tokenizer.begins_text(index):
                self._begins = True
            elif self._begins:
                raw, self._begins = raw.removeprefix(b" "), False
        return raw if self._special or index not in self._tokenizer.special_ids else b""


def vocab_size(metadata: Mapping[str, Any], path: str) -> int:
    """How many ids a file without a usable tokenizer has: what it says, or placeholder tokens that it lists."""
    value = metadata.get(f"{metadata.get('general.architecture')}.vocab_size", 0)
    listed = len(read_array(metadata, "tokens", path, str) or [])
    return value if isinstance(value, int) and 0 < value < 1 << 31 else listed


def pre_tokenizer(metadata: Mapping[str, Any], path: str, override: str | None) -> PreTokenizer:
    name = override or read_value(metadata, "pre", path, str, "")
    if not name:
        warn(
            f"{path}: tokenizer.ggml.pre is missing, so text is split in the default way and answers may be worse; "
            "name the right one with pre= (--pre on the command line)"
        )
        name = "default"
    if name not in PRE_TOKENIZERS:
        problem = f"is {name!r}, which this build does not know"
        hint = f"override it with pre= (--pre on the command line), one of: {', '.join(sorted(PRE_TOKENIZERS))}"
        raise UnsupportedError(path, "tokenizer.ggml.pre", problem, value=name, hint=hint)
    return PRE_TOKENIZERS[name]


def cut_out(part: str | int, spelling: str, index: int) -> Iterable[str | int]:
    if isinstance(part, int):
        return [part]
    pieces: list[str | int] = []
    for n, piece in enumerate(part.split(spelling)):
        pieces += [index] if n else []
        pieces += [piece] if piece else []
    return pieces


def check_text(text: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"text must be a str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        character = ord(text[error.start])
        raise InputError(
            f"text holds the lone surrogate U+{character:04X} at character {error.start:,}, which no UTF-8 text can; "
            "remove it or decode the text with errors='replace'"
        ) from None
