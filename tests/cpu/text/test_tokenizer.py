"""Special tokens, flags and damage, on small vocabularies made by hand."""

from __future__ import annotations

import sys
import threading
import warnings

import numpy as np
import pytest

from hotset.errors import FileError, InputError, UnsupportedError
from hotset.text import Tokenizer, TokenizerWarning, stop_token_ids

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4


def quiet(metadata, **options):
    """Build a tokenizer that must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Tokenizer.from_metadata(metadata, **options)


def test_control_tokens_in_text_are_parsed_only_on_request(bpe_metadata):
    tokenizer = quiet(bpe_metadata({"<|im_end|>": CONTROL}))
    index = tokenizer.id_of("<|im_end|>")
    text = "a<|im_end|>b"

    assert tokenizer.encode(text, parse_special=True) == [tokenizer.id_of("a"), index, tokenizer.id_of("b")]
    assert index not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_user_defined_tokens_in_text_are_always_parsed(bpe_metadata):
    tokenizer = quiet(bpe_metadata({"<tool>": USER_DEFINED}))

    assert tokenizer.id_of("<tool>") in tokenizer.encode("a<tool>b")


def test_the_longest_special_token_wins(bpe_metadata):
    tokenizer = quiet(bpe_metadata({"<a>": USER_DEFINED, "x<a>y": USER_DEFINED}))

    assert tokenizer.encode("x<a>y<a>") == [tokenizer.id_of("x<a>y"), tokenizer.id_of("<a>")]


def test_merges_never_make_a_control_token(bpe_metadata, spm_metadata):
    bpe = quiet(bpe_metadata(merges=["< s", "<s >"], token_type=[NORMAL] * 257 + [CONTROL]))
    pieces = {"\u2581": 0.0, "<": -3.0, "s": -3.0, ">": -3.0, "<s": -1.0}
    spm = quiet(spm_metadata(pieces, add_bos_token=False))

    assert bpe.special_ids
    assert not bpe.special_ids & set(bpe.encode("<s>"))
    assert not spm.special_ids & set(spm.encode("<s>"))


@pytest.mark.parametrize(
    ("flag", "text", "parse", "n_bos"),
    [
        (True, "hi", False, 1),
        (True, "<s>hi", True, 1),
        (True, "<s>hi", False, 1),
        (False, "hi", False, 0),
        (True, "", False, 1),
    ],
)
def test_there_is_at_most_one_bos(spm_metadata, flag, text, parse, n_bos):
    tokenizer = quiet(spm_metadata(add_bos_token=flag))
    ids = tokenizer.encode(text, parse_special=parse)

    assert n_bos == ids.count(tokenizer.bos_id)
    assert ids[:n_bos] == [1] * n_bos


def test_eos_is_added_only_where_the_file_asks(spm_metadata):
    assert quiet(spm_metadata(add_eos_token=True)).encode("x")[-1] == 2
    assert quiet(spm_metadata()).encode("x")[-1] != 2


def test_add_bos_without_a_bos_token_adds_nothing(bpe_metadata):
    tokenizer = quiet(bpe_metadata(add_bos_token=True))

    assert tokenizer.bos_id is None
    assert len(tokenizer.encode("x")) == 1


def test_known_end_of_turn_tokens_end_an_answer_beside_eos(bpe_metadata):
    tokenizer = quiet(
        bpe_metadata({"<|end_of_text|>": CONTROL, "<|eot_id|>": CONTROL, "<|x|>": CONTROL}, eos_token_id=256)
    )

    assert tokenizer.end_ids == {256, 257}


def test_eot_and_eom_of_the_file_end_an_answer(bpe_metadata):
    tokenizer = quiet(bpe_metadata({"<e>": CONTROL, "<m>": CONTROL}, eot_token_id=256, eom_token_id=257))

    assert tokenizer.end_ids == {256, 257}
    assert (tokenizer.eot_id, tokenizer.eom_id) == (256, 257)


def test_a_marker_ends_an_answer_though_the_file_calls_it_normal(bpe_metadata):
    tokenizer = quiet(bpe_metadata({"<|im_end|>": NORMAL}))

    assert tokenizer.end_ids == tokenizer.special_ids == {256}


def test_html_is_no_end_of_an_answer(bpe_metadata):
    assert quiet(bpe_metadata({"</s>": NORMAL})).end_ids == frozenset()


def test_an_eos_that_is_punctuation_is_not_used(bpe_metadata):
    with pytest.warns(TokenizerWarning, match=r"eos_token_id points to ','"):
        tokenizer = Tokenizer.from_metadata(
            bpe_metadata(eos_token_id=bpe_metadata()["tokenizer.ggml.tokens"].index(","))
        )

    assert tokenizer.end_ids == frozenset()
    assert tokenizer.eos_id is None


def test_the_end_of_a_harmony_message_is_not_the_end_of_the_answer(bpe_metadata):
    tokenizer = quiet(bpe_metadata(dict.fromkeys(["<|end|>", "<|return|>", "<|call|>"], CONTROL)))

    assert {tokenizer.token_text(i) for i in tokenizer.end_ids} == {"<|return|>", "<|call|>"}


def test_a_special_id_out_of_range_is_not_used(bpe_metadata):
    with pytest.warns(TokenizerWarning, match="bos_token_id is 999"):
        assert Tokenizer.from_metadata(bpe_metadata(bos_token_id=999)).bos_id is None


def test_a_missing_pre_is_a_loud_warning_and_the_default(bpe_metadata):
    with pytest.warns(TokenizerWarning, match=r"tokenizer.ggml.pre is missing.*--pre"):
        tokenizer = Tokenizer.from_metadata(bpe_metadata(pre=None))

    assert len(tokenizer.encode("12345")) == 5


def test_an_unknown_pre_is_an_error_that_names_the_override(bpe_metadata):
    with pytest.raises(UnsupportedError, match=r"'nonsense'.*--pre.*qwen2"):
        quiet(bpe_metadata(pre="nonsense"))

    assert quiet(bpe_metadata(pre="nonsense"), pre="qwen2").encode("x")


def test_an_override_stands_above_the_file(bpe_metadata):
    merges = ["1 2", "12 3"]

    assert len(quiet(bpe_metadata(merges=merges)).encode("123")) == 1
    assert len(quiet(bpe_metadata(merges=merges), pre="qwen2").encode("123")) == 3


def test_an_unknown_tokenizer_is_an_error(bpe_metadata):
    with pytest.raises(UnsupportedError, match=r"'rwkv'.*'gpt2'.*'gemma4'.*'llama'.*'t5'"):
        quiet(bpe_metadata(model="rwkv"))


@pytest.mark.parametrize("model", [None, "none", "no_vocab", "test"])
def test_a_file_without_a_tokenizer_loads_and_asks_for_ids(model):
    metadata = {"general.architecture": "qwen3moe", "qwen3moe.vocab_size": 99}
    tokenizer = quiet(metadata | ({"tokenizer.ggml.model": model} if model else {}), path="x.gguf")

    assert tokenizer.n_vocab == 99
    assert tokenizer.end_ids == frozenset()
    for use in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([1]), lambda: tokenizer.token_text(1)):
        with pytest.raises(UnsupportedError, match=r"x\.gguf.*no tokenizer.*feed token ids"):
            use()


def test_placeholder_tokens_say_how_many_ids_there_are(bpe_metadata):
    metadata = bpe_metadata(model="test", tokens=["a"] * 130, token_type=None)

    assert quiet(metadata).n_vocab == 130


def test_html_among_the_tokens_of_gemma_is_no_end_of_an_answer(raw_metadata):
    tokenizer = quiet(raw_metadata(extra={"<|tool_response>": CONTROL, "</s>": USER_DEFINED}))

    assert {tokenizer.token_text(i) for i in tokenizer.end_ids} == {"<eos>", "<|tool_response>"}


def test_unknown_text_falls_back_to_bytes(spm_metadata):
    tokenizer = quiet(spm_metadata(add_bos_token=False, add_space_prefix=False))

    assert [tokenizer.token_text(i) for i in tokenizer.encode("🦙")] == ["<0xF0>", "<0x9F>", "<0xA6>", "<0x99>"]


@pytest.mark.parametrize(
    ("prefix", "text", "pieces"),
    [
        (True, "a", ["\u2581a"]),
        (True, " a", ["\u2581", "\u2581a"]),
        (True, "<s>a", ["<s>", "\u2581a"]),
        (True, "<s> a", ["<s>", "\u2581", "\u2581a"]),
        (False, "a", ["a"]),
        (False, " a", ["\u2581a"]),
        (False, "<s> a", ["<s>", "\u2581a"]),
    ],
)
def test_the_space_before_a_text_follows_the_flag(spm_metadata, prefix, text, pieces):
    pieces_of_model = {"\u2581": -2.0, "a": -3.0, "\u2581a": -1.0}
    tokenizer = quiet(spm_metadata(pieces_of_model, add_bos_token=False, add_space_prefix=prefix))
    ids = tokenizer.encode(text, parse_special=True)

    assert pieces == [tokenizer.token_text(i) for i in ids]
    assert text == tokenizer.decode(ids)


def test_extra_whitespace_goes_where_the_file_asks(spm_metadata):
    tokenizer = quiet(spm_metadata(remove_extra_whitespaces=True))

    assert tokenizer.decode(tokenizer.encode("  a   b "), special=False) == "a b"


def test_the_pair_with_the_best_score_merges_first(spm_metadata):
    pieces = {"a": -9.0, "b": -9.0, "c": -9.0, "ab": -2.0, "bc": -1.0, "abc": -3.0}
    tokenizer = quiet(spm_metadata(pieces, add_space_prefix=False, add_bos_token=False))

    assert [tokenizer.token_text(i) for i in tokenizer.encode("abc")] == ["abc"]
    del pieces["abc"]
    tokenizer = quiet(spm_metadata(pieces, add_space_prefix=False, add_bos_token=False))
    assert [tokenizer.token_text(i) for i in tokenizer.encode("abc")] == ["a", "bc"]


def test_a_missing_byte_token_is_a_load_error(spm_metadata):
    metadata = spm_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("<0x0A>")] = "<gone>"

    with pytest.raises(FileError, match="<0x0A>"):
        quiet(metadata)


def test_every_byte_token_gives_its_byte(spm_metadata):
    tokenizer = quiet(spm_metadata())

    for byte in range(256):
        assert tokenizer.token_bytes(tokenizer.id_of(f"<0x{byte:02X}>")) == bytes([byte])


@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_bytes_of_tokens_that_are_no_utf8_stay_raw(bpe_metadata, spm_metadata, kind):
    odd = {b"\xc3".decode("utf-8", "surrogateescape"): USER_DEFINED, "\x1b[0m": CONTROL}
    tokenizer = quiet(bpe_metadata(odd) if kind == "bpe" else spm_metadata(extra=odd))
    first, second = tokenizer.n_vocab - 2, tokenizer.n_vocab - 1

    assert tokenizer.token_bytes(first) == b"\xc3"
    assert tokenizer.token_bytes(second) == b"\x1b[0m"
    assert tokenizer.decode([first]) == "\ufffd"
    assert tokenizer.decode(tokenizer.encode("é\x1b[0m"), special=False) == "é\x1b[0m"


def test_a_byte_that_the_vocabulary_lacks_is_named(bpe_metadata):
    metadata = bpe_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("z")] = "zz"

    with pytest.raises(InputError, match="0x7A"):
        quiet(metadata).encode("fizz")


@pytest.mark.parametrize("text", ["a\ud800b", "\udcff", b"bytes", None])
def test_what_is_no_text_is_refused(bpe_metadata, text):
    with pytest.raises(InputError):
        quiet(bpe_metadata()).encode(text)


@pytest.mark.parametrize("index", [-1, 256, 1 << 40])
def test_ids_out_of_range_are_refused(bpe_metadata, index):
    tokenizer = quiet(bpe_metadata())

    for use in (tokenizer.token_bytes, tokenizer.token_text, lambda i: tokenizer.decode([i])):
        with pytest.raises(InputError, match="out of range"):
            use(index)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", None),
        ("tokens", []),
        ("tokens", "abc"),
        ("tokens", np.zeros(3)),
        ("token_type", [1, 2]),
        ("token_type", ["a"] * 256),
        ("merges", None),
        ("merges", ["ab"]),
        ("merges", [1]),
        ("eos_token_id", "two"),
        ("add_bos_token", "yes"),
        ("model", 5),
        ("pre", 5),
    ],
)
def test_damaged_keys_are_named(bpe_metadata, key, value):
    with pytest.raises(FileError, match=f"tokenizer.ggml.{key}"):
        quiet(bpe_metadata() | {f"tokenizer.ggml.{key}": value}, path="x.gguf").encode("ab")


@pytest.mark.parametrize(("key", "value"), [("scores", None), ("scores", [0.0]), ("add_space_prefix", 2.5)])
def test_damaged_keys_of_sentencepiece_are_named(spm_metadata, key, value):
    with pytest.raises(FileError, match=f"tokenizer.ggml.{key}"):
        quiet(spm_metadata(**{key: value}))


def test_merges_that_cannot_apply_are_left_out(bpe_metadata):
    metadata = bpe_metadata(merges=["a b"])
    metadata["tokenizer.ggml.merges"] = ["a b", "ab zz", "q r"]

    assert len(quiet(metadata).encode("abqr")) == 3


def test_a_stop_string_that_spells_a_control_token_stops_by_id(bpe_metadata):
    tokenizer = quiet(bpe_metadata({"<|user|>": CONTROL, "<b>": USER_DEFINED}))

    assert stop_token_ids(tokenizer, ["<|user|>", "<b>", "a", "nope"]) == {256}


@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_other_threads_run_while_a_long_text_is_encoded(bpe_metadata, spm_metadata, kind):
    pieces = {"\u2581": 0.0, "a": -3.0, "aa": -1.0}
    tokenizer = quiet(bpe_metadata(merges=["a a"]) if kind == "bpe" else spm_metadata(pieces))
    tokenizer.encode("a")
    done = threading.Event()
    turns = []

    def turn():
        while not done.wait(1e-4):
            turns.append(None)

    interval = sys.getswitchinterval()
    # What runs in Python then never gives way by itself: the other thread gets on only where the encoder lets it.
    sys.setswitchinterval(60)
    thread = threading.Thread(target=turn)
    try:
        thread.start()
        tokenizer.encode("a" * 300_000)
    finally:
        done.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert len(turns) > 10
