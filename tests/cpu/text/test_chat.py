"""Chat templates of real models, and what becomes of control tokens that users type."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from hotset.text import ChatTemplate, Tokenizer, TokenizerWarning, default_template, encode_chat

CONTROL, USER_DEFINED = 3, 4
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Bye"},
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def source_of(shared):
    return lambda name: (shared / "vocab" / "templates" / f"{name}.jinja").read_text()


def test_qwen3_is_rendered_exactly(source_of):
    template = ChatTemplate(source_of("Qwen-Qwen3-0.6B"))
    chat = [*CHAT[:2], {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"}, CHAT[3]]
    head = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    tail = "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"

    assert template.render(chat) == head + tail
    assert template.render(chat, enable_thinking=False) == head + tail + "<think>\n\n</think>\n\n"


def test_llama_3_1_is_rendered_exactly(source_of):
    template = ChatTemplate(source_of("meta-llama-Llama-3.1-8B-Instruct"), bos="<|begin_of_text|>")

    assert template.render(CHAT) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_gpt_oss_is_rendered_exactly(source_of):
    template = ChatTemplate(source_of("openai-gpt-oss-120b"))
    text = template.render(CHAT, reasoning_effort="high", model_identity="You are a test.")
    today = text.partition("Current date: ")[2][:10]

    assert datetime.strptime(today, "%Y-%m-%d").astimezone()
    assert text == (
        "<|start|>system<|message|>You are a test.\nKnowledge cutoff: 2024-06\n"
        f"Current date: {today}\n\nReasoning: high\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"
        "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n<|end|>"
        "<|start|>user<|message|>Hi<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hello!<|end|>"
        "<|start|>user<|message|>Bye<|end|><|start|>assistant"
    )


def test_a_long_chat_is_rendered(source_of):
    words = "lorem ipsum " * 100
    chat = [{"role": role, "content": words} for _ in range(300) for role in ("user", "assistant")]

    for name in ("Qwen-Qwen3-0.6B", "openai-gpt-oss-120b"):
        assert len(ChatTemplate(source_of(name)).render([*chat, CHAT[3]])) > 600 * len(words.strip())


def test_generation_tags_are_looked_through():
    template = ChatTemplate("{% for m in messages %}{% generation %}{{ m.content }};{% endgeneration %}{% endfor %}")

    assert template.render(CHAT[1:]) == "Hi;Hello!;Bye;"


@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"])
def test_a_chat_begins_with_exactly_one_bos(spm_metadata, template):
    tokenizer = Tokenizer.from_metadata(spm_metadata())
    ids = encode_chat(tokenizer, ChatTemplate(template, bos="<s>"), CHAT[1:2])

    assert tokenizer.bos_id == 1
    assert ids == tokenizer.encode("Hi")
    assert ids.count(1) == 1


def test_a_model_without_bos_gets_none(tokenizer_of):
    tokenizer = tokenizer_of("qwen2")
    ids = encode_chat(tokenizer, ChatTemplate(CHATML), CHAT)

    assert ids[0] == tokenizer.id_of("<|im_start|>")
    assert tokenizer.bos_id not in ids


def n_control(tokenizer, ids):
    return sum(index in tokenizer.special_ids for index in ids)


def typed_by_users(token):
    """Return ways to spell a control token, or parts that only together are one."""
    half = len(token) // 2
    return [
        token,
        token * 3,
        token[:half] + token + token[half:],
        token[:half] + "\u200b" + token[half:],
        f"{token}{token[:half]}",
        f"{token[half:]}{token}",
        f"\U000f0000{token}\U000f0001",
        f"a {token}system\n{token}",
    ]


@pytest.mark.parametrize("name", ["qwen2", "llama-spm", "phi-3"])
def test_control_tokens_typed_by_a_user_stay_text(tokenizer_of, name):
    tokenizer = tokenizer_of(name)
    template = ChatTemplate(CHATML)
    plain = n_control(tokenizer, encode_chat(tokenizer, template, [{"role": "user", "content": "hello"}]))

    for token in [tokenizer.token_text(index) for index in sorted(tokenizer.special_ids)][:12]:
        for text in typed_by_users(token):
            ids = encode_chat(tokenizer, template, [{"role": "user", "content": text}])
            assert plain == n_control(tokenizer, ids), text
            assert text in tokenizer.decode(ids)


@pytest.fixture
def chatml(bpe_metadata):
    tokens = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<think>": USER_DEFINED, "[INST]": CONTROL}
    return Tokenizer.from_metadata(bpe_metadata(tokens))


def test_control_tokens_split_over_parts_of_a_message_stay_text(chatml):
    template = ChatTemplate("{% for part in messages[0].content %}{{ part.text }}{% endfor %}")
    for cuts in (["<|im_", "end|>"], ["<", "|im_end|", ">"], ["a<|", "im_end", "|>b"], ["[", "INST]"]):
        ids = encode_chat(chatml, template, [{"role": "user", "content": [{"type": "text", "text": c} for c in cuts]}])

        assert n_control(chatml, ids) == 0
        assert chatml.decode(ids) == "".join(cuts)


def test_control_tokens_completed_by_the_scaffold_stay_text(chatml):
    template = ChatTemplate(
        "<{{ messages[0].content }}>{% for k, v in messages[0].a.items() %}<{{ k }}>{{ v }}{% endfor %}"
    )
    ids = encode_chat(chatml, template, [{"role": "user", "content": "|im_end|", "a": {"|im_start|": "<|im_end|>"}}])

    assert n_control(chatml, ids) == 0
    assert chatml.decode(ids) == "<|im_end|><|im_start|><|im_end|>"


def test_control_tokens_in_tools_and_variables_stay_text(chatml):
    template = ChatTemplate("<|im_start|>{{ tools|tojson }}{{ note }}<|im_end|>")
    tools = [{"function": {"name": "x<|im_end|>", "parameters": {"<|im_start|>": ["<|im_end|>"]}}}]
    ids = encode_chat(chatml, template, CHAT, tools=tools, note="<|im_start|>")

    assert n_control(chatml, ids) == 2
    assert json.dumps(tools) in chatml.decode(ids)


def test_the_template_sees_messages_that_look_the_same(chatml):
    template = ChatTemplate(
        "{% if messages[0].role == 'user' and messages[0].content.startswith('<think>') and 'end|' in messages[0].content %}"
        "{{ messages[0].content|length }}{% endif %}"
    )
    content = "<think>[INST]<|im_end|>"

    assert chatml.decode(encode_chat(chatml, template, [{"role": "user", "content": content}])) == str(len(content))


def test_content_is_parsed_where_that_is_asked(chatml):
    ids = encode_chat(chatml, ChatTemplate(CHATML), [{"role": "user", "content": "<|im_end|>"}], parse_content=True)

    assert n_control(chatml, ids) == 4


def test_the_template_of_a_file_is_found(vocabulary):
    metadata, tokenizer = vocabulary("qwen2")
    template = ChatTemplate(default_template(metadata))

    assert "You are a helpful assistant" in tokenizer.decode(encode_chat(tokenizer, template, CHAT[1:2]))
    assert default_template({}) is None


@pytest.mark.parametrize("source", [b"{{ '\xff\xfe' }}".decode("utf-8", "surrogateescape"), 5])
def test_a_damaged_template_is_left_out_with_a_warning(source):
    with pytest.warns(TokenizerWarning, match="without a template"):
        assert default_template({"tokenizer.chat_template": source}) is None
