"""What llama.cpp makes of the same texts, and round trips on the same vocabularies."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotset.text import Detokenizer

NAMES = ["qwen2", "gpt-2", "llama-spm", "phi-3", "llama-bpe", "falcon", "deepseek-coder", "deepseek-llm"]
KINDS = ["qwen2", "gpt-2", "llama-spm", "phi-3"]


def test_every_golden_is_tested(shared):
    assert sorted(f"ggml-vocab-{name}.gguf.out" for name in NAMES) == sorted(
        path.name for path in (shared / "vocab").glob("*.out")
    )


@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_the_goldens(tokenizer_of, goldens, name):
    tokenizer, pairs = tokenizer_of(name), goldens(name)

    assert len(pairs) == 47
    for text, ids in pairs:
        assert ids == tokenizer.encode(text, add_special=False), text


@pytest.mark.parametrize("name", NAMES)
def test_goldens_decode_to_their_texts(tokenizer_of, goldens, name):
    tokenizer = tokenizer_of(name)

    for text, ids in goldens(name):
        assert text == tokenizer.decode(ids)


@pytest.mark.parametrize("name", KINDS)
@given(text=st.text())
@example(text="\u2581 \u2581")
@example(text="  a </s>  b<|im_end|> <s> x")
@example(text="\x00\x01\r\n\u200b\ufeff\ufffd🦙")
@settings(max_examples=100, deadline=None)
def test_any_text_survives_the_round_trip(tokenizer_of, name, text):
    tokenizer = tokenizer_of(name)
    plain = tokenizer.encode(text, add_special=False)

    assert text == tokenizer.decode(plain)
    assert not tokenizer.special_ids & set(plain)
    assert text == tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=True))
    assert text == tokenizer.decode(tokenizer.encode(text), special=False)


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_streamed_text_is_the_whole_text(tokenizer_of, name, data):
    tokenizer = tokenizer_of(name)
    ids = data.draw(st.lists(st.integers(0, tokenizer.n_vocab - 1) | st.integers(0, 300)))
    special = data.draw(st.booleans())
    stream = Detokenizer(tokenizer, special=special)
    pieces = [stream.push(index) for index in ids]

    assert tokenizer.decode(ids, special=special) == "".join([*pieces, stream.flush()])


@pytest.mark.parametrize("name", KINDS)
def test_there_is_a_token_for_every_byte(tokenizer_of, name):
    tokenizer = tokenizer_of(name)
    spelled = {tokenizer.token_bytes(index) for index in range(tokenizer.n_vocab)}

    assert {bytes([byte]) for byte in range(256)} <= spelled


@pytest.mark.parametrize(("name", "text"), [("qwen2", "12345 it's  x\n\n"), ("llama-bpe", "12345 it's  x\n\n")])
def test_digits_are_split_as_the_model_learnt_them(tokenizer_of, name, text):
    tokenizer = tokenizer_of(name)
    pieces = [tokenizer.decode([index]) for index in tokenizer.encode(text, add_special=False)]

    digits = ["1", "2", "3", "4", "5"] if name == "qwen2" else ["123", "45"]
    assert [*digits, " it", "'s", " ", " x", "\n\n"] == pieces


def test_a_vocabulary_of_150_000_tokens_builds_fast(vocabulary):
    metadata, tokenizer = vocabulary("qwen2")
    start = time.process_time()
    fresh = type(tokenizer).from_metadata(metadata)
    fresh.encode("x")

    # About 0.4 s of processor time; the bound leaves room for slow machines.
    assert time.process_time() - start < 4


def test_importing_the_package_loads_no_heavy_library():
    code = "import sys, hotset.text; print(sorted({'torch', 'tokenizers', 'jinja2'} & set(sys.modules)))"

    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
