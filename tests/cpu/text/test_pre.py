"""Where the words of each `tokenizer.ggml.pre` end."""

from __future__ import annotations

import pytest
from tokenizers.pre_tokenizers import Sequence

from hotset.text import PRE_TOKENIZERS

DIGITS = {
    "12345": "gpt-2 phi-2 mpt olmo jais trillion exaone4 mellum gigachat a.x-4.0 granite-docling deepseek-llm poro-chat bloom gpt3-finnish",
    "1 2 3 4 5": (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2 qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan solar-open "
        "grok-2 kormo qwen35 laguna seed-coder exaone-moe bailingmoe bailingmoe2 llada-moe tekken youtu deepseek-coder viking chameleon"
    ),
    "123 45": (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 glm4 chatglm-bpe dbrx smaug-bpe jais-2 gpt-4o llama4 minimax-m2 "
        "kimi-k2 deepseek-v3 hunyuan-dense hy_v4 joyai-llm minicpm5 falcon default"
    ),
    "12 345": "afmoe superbpe tiny_aya cohere2moe",
}


def words(name: str, text: str) -> list[str]:
    cut = Sequence(PRE_TOKENIZERS[name].cuts()).pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in cut]


@pytest.mark.parametrize(("parts", "names"), DIGITS.items())
def test_numbers_are_cut_as_the_model_learnt_them(parts, names):
    for name in names.split():
        assert [*parts.split(" "), "."] == words(name, "12345."), name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["12345", " it", "'s", " ", " x", "\n\n"]),
        ("starcoder", ["1", "2", "3", "4", "5", " it", "'s", " ", " x", "\n\n"]),
        ("llama-bpe", ["123", "45", " it", "'s", " ", " x", "\n\n"]),
        ("qwen2", ["1", "2", "3", "4", "5", " it", "'s", " ", " x", "\n\n"]),
        ("deepseek-v3", ["123", "45", " it", "'s", " ", " x", "\n\n"]),
        ("gpt-4o", ["123", "45", " it's", " ", " x", "\n\n"]),
        ("tekken", ["1", "2", "3", "4", "5", " it", "'s", " ", " x", "\n\n"]),
        ("kimi-k2", ["123", "45", " it's", " ", " x", "\n\n"]),
        ("deepseek-llm", ["12345", " it", "'", "s", " ", " x", "\n", "\n"]),
        ("bloom", ["12345", " it's", " ", " x", "\n\n"]),
        ("superbpe", ["12", "345", " it's  x\n\n"]),
        ("afmoe", ["12", "345", " it", "'s", " ", " x", "\n\n"]),
        ("chameleon", ["1", "2", "3", "4", "5", " it", "'", "s", "  ", "x", "\n", "\n"]),
    ],
)
def test_the_same_text_is_cut_in_each_way(name, expected):
    assert expected == words(name, "12345 it's  x\n\n")


@pytest.mark.parametrize(
    ("names", "text", "expected"),
    [
        ("gpt-4o minimax-m2 tekken youtu kimi-k2 tiny_aya", "aCamelCase HTTPServer", ["a", "Camel", "Case", " HTTPServer"]),
        ("llama-bpe qwen2 gpt-2 deepseek-v3", "aCamelCase HTTPServer", ["aCamelCase", " HTTPServer"]),
        ("qwen35 gpt-4o tekken deepseek-v3 afmoe exaone-moe", "e\u0301a", ["e\u0301a"]),
        ("qwen2 llama-bpe bailingmoe", "e\u0301a", ["e", "\u0301a"]),
        ("kimi-k2 youtu deepseek-v3 afmoe deepseek-coder deepseek-llm", "ab漢字", ["ab", "漢字"]),
        ("qwen2 llama-bpe gpt-4o", "ab漢字", ["ab漢字"]),
        ("deepseek-v3 afmoe", ".Print ?x;", [".Print", " ?", "x", ";"]),
        ("gpt-4o tekken youtu", "x.\n/", ["x", ".\n/"]),
        ("llama-bpe kimi-k2", "x.\n/", ["x", ".\n", "/"]),
        ("seed-coder", "x.\n", ["x", ".", "\n"]),
        ("laguna", "a \n b", ["a", " ", "\n", " b"]),
        ("exaone-moe", "a bc. d", ["a bc", ".", " d"]),
        ("ufakzeka", "x'te", ["x", "'te"]),
        ("qwen2", "x'te", ["x", "'t", "e"]),
        ("viking poro-chat", "a(b c|", ["a", "(", "b", " c", "|"]),
        ("jais-2", " " * 13 + "x", [" " * 8, " " * 4, " x"]),
        ("falcon", "a`b", ["a", "`", "b"]),
        ("chameleon", "xIMGIMGABZ!?", ["x", "IMGIMGABZ", "!", "?"]),
        ("spark2_5", ".\n\n", [".", "\n", "\n"]),
        ("tiny_aya", "1234567 12ab", ["1", "234", "567", " ", "12", "ab"]),
        ("afmoe", "1234567 12ab", ["1", "234", "567", " ", "12", "ab"]),
        ("minicpm5", "1234", ["123", "4"]),
    ],
)  # fmt: skip
def test_what_sets_a_family_apart(names, text, expected):
    for name in names.split():
        assert expected == words(name, text), name


@pytest.mark.parametrize("name", [name for name, entry in PRE_TOKENIZERS.items() if not entry.raw])
def test_words_make_up_the_text(name):
    text = "Hi, it's 12½345 €/\\ ÀÉÎõü ﬁ Ω\u2126 \t\r\n\n  x ნინო 안녕 こんにちは ไทย 🦙\u200d🦙 e\u0301\u0301 \x00\u2028\ufeff"

    assert text == "".join(words(name, text))
    for unit in ("a", " ", "\n", "1", "a ", "aB", " \n", "!", "漢", "e\u0301"):
        assert unit * 2000 == "".join(words(name, unit * 2000))
