"""A checkpoint's tokenizer.json as the metadata of a GGUF file: `tokenizer.ggml.*` and the chat template."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.checkpoint.config import read_json
from hotset.errors import FileError, UnsupportedError
from hotset.gguf import string_array
from hotset.text.pre import PRE_TOKENIZERS
from hotset.text.vocabulary import TokenType

if TYPE_CHECKING:
    from hotset.checkpoint.config import Config

ROLES = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}


def vocabulary_keys(folder: Path, config: Config) -> dict[str, Any]:
    """The tokenizer's keys; of a folder without tokenizer.json those of a model that takes token ids alone."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return {"tokenizer.ggml.model": "none"}
    tokenizer = read_json(path)
    model = tokenizer.get("model", {})
    if model.get("type", "BPE") != "BPE":
        raise UnsupportedError(
            path, "model.type", f"{model.get('type')!r} is not supported from a checkpoint", value=model.get("type"),
            hint="take a GGUF file of the model",
        )  # fmt: skip
    keys = _sentencepiece(model) if model.get("byte_fallback") else _byte_level(path, tokenizer)
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    ids = _ids(tokenizer)
    n = max(config.int("vocab_size"), max(ids.values(), default=-1) + 1)
    keys |= {
        "tokenizer.ggml.tokens": string_array(_texts(ids, n)),
        "tokenizer.ggml.token_type": np.asarray(_types(tokenizer, ids, n), np.int32),
        **_roles(config, settings, ids),
    }
    for name in ("add_bos_token", "add_eos_token"):
        if isinstance(settings.get(name), bool):
            keys[f"tokenizer.ggml.{name}"] = settings[name]
    template = _template(folder, settings)
    return keys | ({"tokenizer.chat_template": template} if template else {})


def _ids(tokenizer: dict[str, Any]) -> dict[str, int]:
    added = {token["content"]: int(token["id"]) for token in tokenizer.get("added_tokens", ())}
    return {**tokenizer["model"]["vocab"], **added}


def _texts(ids: dict[str, int], n: int) -> list[str]:
    """Token texts by id; llama.cpp's converter fills ids without a token the same way."""
    texts = [f"[PAD{i}]" for i in range(n)]
    for text, index in ids.items():
        texts[index] = text
    return texts


def _types(tokenizer: dict[str, Any], ids: dict[str, int], n: int) -> list[int]:
    types = [int(TokenType.UNUSED)] * n
    fallback = tokenizer["model"].get("byte_fallback")
    for text, index in ids.items():
        is_byte = fallback and len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        types[index] = TokenType.BYTE if is_byte else TokenType.NORMAL
    for token in tokenizer.get("added_tokens", ()):
        types[token["id"]] = TokenType.CONTROL if token.get("special") else TokenType.USER_DEFINED
    unknown = tokenizer["model"].get("unk_token")
    if unknown in ids:
        types[ids[unknown]] = TokenType.UNKNOWN
    return types


def _byte_level(path: Path, tokenizer: dict[str, Any]) -> dict[str, Any]:
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"].get("merges", ())]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _pre(path, tokenizer),
        "tokenizer.ggml.merges": string_array(merges),
    }


def _sentencepiece(model: dict[str, Any]) -> dict[str, Any]:
    """Sentencepiece's BPE merges by score, and gives later tokens lower ones: the id's order is the scores'."""
    size = max(model["vocab"].values(), default=-1) + 1
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.scores": np.asarray([-float(i) for i in range(size)], np.float32),
    }


def _pre(path: Path, tokenizer: dict[str, Any]) -> str:
    """The name of how text is cut into words: that of the known one with the same patterns."""
    patterns = tuple(_patterns(tokenizer.get("pre_tokenizer") or {}))
    whole = bool(tokenizer["model"].get("ignore_merges"))
    same = [name for name, known in PRE_TOKENIZERS.items() if known.patterns == patterns]
    if same:
        return next((name for name in same if PRE_TOKENIZERS[name].ignore_merges == whole), same[0])
    raise FileError(
        path, "pre_tokenizer", f"cuts text as no known one does: {patterns}", value=patterns,
        hint="name a close one with --pre, or take a GGUF file of the model",
    )  # fmt: skip


def _patterns(step: dict[str, Any]) -> list[str]:
    if step.get("type") == "Sequence":
        return [pattern for inner in step.get("pretokenizers", ()) for pattern in _patterns(inner)]
    if step.get("type") == "Split":
        return [step["pattern"].get("Regex", "")]
    if step.get("type") == "Digits":
        return [r"\p{N}" if step.get("individual_digits") else r"\p{N}+"]
    # ByteLevel cuts as GPT-2 does, unless told not to.
    return [_GPT2] if step.get("type") == "ByteLevel" and step.get("use_regex", True) else []


_GPT2 = PRE_TOKENIZERS["gpt-2"].patterns[-1]


def _roles(config: Config, settings: dict[str, Any], ids: dict[str, int]) -> dict[str, int]:
    found = {}
    for role, key in ROLES.items():
        token = settings.get(f"{role}_token")
        text = token.get("content") if isinstance(token, dict) else token
        index = ids.get(text) if isinstance(text, str) else config.get(f"{role}_token_id")
        index = index[0] if isinstance(index, list) and index else index
        if isinstance(index, int):
            found[f"tokenizer.ggml.{key}"] = index
    return found


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    alone = folder / "chat_template.jinja"
    if alone.is_file():
        return alone.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = next((t.get("template") for t in template if t.get("name") == "default"), None)
    return template if isinstance(template, str) else None
