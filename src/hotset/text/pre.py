r"""How a byte-level BPE tokenizer cuts text into words before merging: one entry per `tokenizer.ggml.pre` name.

The names are llama.cpp's; the patterns are those of the models' own tokenizers (Oniguruma), which llama.cpp in part only approximates.
Ranges outside of ASCII are written as \x{...}, because many of their ends have look-alikes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import Split


@dataclass(frozen=True)
class PreTokenizer:
    """The patterns, applied one after the other (what one leaves is cut by the next), and what comes with the name."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A word that is a token as a whole is taken without merging."""
    add_bos: bool = False
    """Whether texts begin with the BOS token where the file does not say."""
    raw: bool = False
    """Merges join the characters of the text, spaces written U+2581, not printable bytes: no pattern, only lines are cut."""

    def cuts(self) -> list[Split]:
        """Return the patterns as steps of the `tokenizers` library: a match is a word, and so is what lies between matches."""
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import Split

        return [Split(Regex(pattern), "isolated") for pattern in self.patterns]


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+|" + _SPACES
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACES
_QWEN2 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_SYMBOLS}|{_LINES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
)
_LLAMA3 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES}"
_JAIS2 = (
    rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|"
    + "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
    + r"|\s"
)
_BAILING = (
    rf"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{{L}}\p{{N}}]?+\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*|\s*[\r\n]|{_SPACES}"
)
_EXAONE_MOE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?"
    rf"|\s*[\r\n]|{_SPACES}"
)


def _cased(mark: str, end: str, digits: str, symbols: str, but: str = "") -> str:
    """Words of capitals and small letters ("MixedCase" is two), after at most one character of another kind."""
    upper, lower = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]", rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    return rf"{mark}{upper}*{lower}+{end}|{mark}{upper}+{lower}*{end}|{digits}|{symbols}|{_LINES}"


_MARK = r"[^\r\n\p{L}\p{N}]?"
_ENDING = f"{_CONTRACTIONS}?"
_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_GPT4O = _cased(_MARK, _ENDING, r"\p{N}{1,3}", _PATHS)
_YOUTU = _cased(_MARK, _ENDING, r"\p{N}", _PATHS)
_TEKKEN = _cased(_MARK, "", r"\p{N}", _PATHS)
_KIMI = r"\p{Han}+|" + _cased(_MARK, _ENDING, r"\p{N}{1,3}", _SYMBOLS, but=r"&&[^\p{Han}]")

_JAPANESE = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_ASIAN = (  # Chinese, Japanese, Thai, Lao, Khmer, Burmese and Korean
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}"
    r"\x{0E40}-\x{0E7F}\x{0E80}-\x{0EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}"
    r"\x{1100}-\x{11FF}]+"
)
_CHINESE = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_YOUTU_ASIAN = (
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+"
    r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+"
    r"|[\x{3105}-\x{312F}]+|" + _JAPANESE
)
_DEEPSEEK_3_WORDS = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_DEEPSEEK_3 = rf"{_DEEPSEEK_3_WORDS}[\r\n]*|{_LINES}"
_SPARK = rf"{_DEEPSEEK_3_WORDS}|[\r\n]|{_SPACES}"
# DeepSeek's letters with a case, spelled out in its tokenizer: those of Unicode, less some.
_CASED_LETTERS = (
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}"
    r"\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}"
    r"\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}"
    r"\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}"
    r"\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}"
    r"\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}"
    r"\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}"
    r"\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}"
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}"
    r"\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
_FULL_STOPS = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+"
# 12345 is 12, 345: what is over three at a time goes first.
_DIGITS_FROM_RIGHT = (r"\p{N}+", r"\A\p{N}{1,2}(?=(?:\p{N}{3})*\z)|\p{N}{3}")

_TABLE: dict[tuple[str, ...], PreTokenizer] = {
    (
        "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "mellum", "gigachat", "a.x-4.0", "granite-docling", "modern-bert",
        "roberta-bpe", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code",
    ): PreTokenizer((_GPT2,)),
    ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"): PreTokenizer((r"\p{N}", _GPT2)),
    ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2", "kormo", "f2llmv2"): PreTokenizer((_QWEN2,)),
    ("qwen35",): PreTokenizer((_QWEN35,)),
    ("laguna",): PreTokenizer((r"[^\n]+|\n+", _QWEN2)),
    ("ufakzeka",): PreTokenizer((rf"{_LETTERS}|\p{{N}}|{_SYMBOLS}|{_LINES}",)),
    ("seed-coder",): PreTokenizer((rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}",)),
    ("exaone-moe",): PreTokenizer((_EXAONE_MOE,)),
    ("bailingmoe", "bailingmoe2", "llada-moe"): PreTokenizer((_BAILING,)),
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"): PreTokenizer(
        (_LLAMA3,), ignore_merges=True, add_bos=True
    ),
    ("glm4", "chatglm-bpe", "dbrx", "smaug-bpe"): PreTokenizer((_LLAMA3,)),
    ("jais-2",): PreTokenizer((_JAIS2,)),
    ("minicpm5",): PreTokenizer((r"\p{N}{1,3}", rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}+|{_SYMBOLS}|{_LINES}"), ignore_merges=True),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): PreTokenizer((_GPT4O,)),
    ("granite-embed-multi-97m",): PreTokenizer((_GPT4O,), ignore_merges=True),
    ("tiny_aya", "cohere2moe"): PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    ("tekken",): PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    ("kimi-k2",): PreTokenizer((_KIMI,)),
    ("youtu",): PreTokenizer((_YOUTU_ASIAN, _YOUTU), ignore_merges=True),
    ("deepseek-llm",): PreTokenizer((
        "[\r\n]", rf"\s?[{_CASED_LETTERS}]+", r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+", r"\s+$",
        _CHINESE, r"\p{N}+",
    )),
    ("deepseek-coder",): PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE, r"\p{N}")),
    ("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"): PreTokenizer((r"\p{N}{1,3}", _JAPANESE, _DEEPSEEK_3)),
    ("spark2_5",): PreTokenizer((r"\p{N}{1,3}", _JAPANESE, _SPARK, r"\p{N}")),
    ("afmoe",): PreTokenizer((*_DIGITS_FROM_RIGHT, _ASIAN, _DEEPSEEK_3)),
    ("superbpe",): PreTokenizer(_DIGITS_FROM_RIGHT),
    ("poro-chat", "bloom", "gpt3-finnish"): PreTokenizer((_FULL_STOPS,)),
    ("viking",): PreTokenizer((_FULL_STOPS, r"\p{N}")),
    ("chameleon",): PreTokenizer(
        ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2), add_bos=True
    ),
    ("falcon",): PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    ("default",): PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ("gemma4", "granite-embed-multi-311m"): PreTokenizer((), raw=True, add_bos=True),
    ("sarvam-moe",): PreTokenizer((), raw=True),
}  # fmt: skip

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: entry for names, entry in _TABLE.items() for name in names}
