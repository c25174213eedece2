"""How a byte-level BPE tokenizer cuts text into words before merging: one entry per `tokenizer.ggml.pre` name.

The names and cuts are llama.cpp's. Only those stand here whose words the golden vocabularies check, under every name that shares them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PreTokenizer:
    """The patterns, applied one after the other (what one leaves is cut by the next), and what comes with the name."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A word that is a token as a whole is taken without merging."""
    add_bos: bool = False
    """Whether texts begin with the BOS token where the file does not say."""


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_TABLE: dict[tuple[str, ...], PreTokenizer] = {
    ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "mellum", "gigachat", "a.x-4.0"): PreTokenizer(
        (_GPT2,)
    ),
    ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2", "kormo"): PreTokenizer(
        (_QWEN2,)
    ),
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"): PreTokenizer(
        (_LLAMA3,), ignore_merges=True, add_bos=True
    ),
    ("glm4", "chatglm-bpe", "dbrx", "smaug-bpe"): PreTokenizer((_LLAMA3,)),
    ("default",): PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ("falcon",): PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    ("deepseek-coder",): PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
}

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: entry for names, entry in _TABLE.items() for name in names}
