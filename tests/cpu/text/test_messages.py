"""Messages in OpenAI's form on their way into templates."""

from __future__ import annotations

import pytest

from hotset.errors import InputError
from hotset.text import ChatTemplate, prepared_messages

PLAIN = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
OBJECTS = ChatTemplate(
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}"
)
TEXTS = ChatTemplate(
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ '!' + c.function.arguments }}{% endfor %}{% endfor %}"
)


def called(arguments, **keys):
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": arguments}}
    return [{"role": "assistant", "tool_calls": [call], **keys}]


@pytest.mark.parametrize(
    ("template", "arguments", "expected"),
    [
        (OBJECTS, '{"a": 1}', "a=1;"),
        (OBJECTS, {"a": 1}, "a=1;"),
        (OBJECTS, "", ""),
        (OBJECTS, None, ""),
        (TEXTS, '{"a": 1}', '!{"a": 1}'),
        (TEXTS, {"a": "é"}, '!{"a": "é"}'),
        (TEXTS, None, "!{}"),
    ],
)
def test_arguments_come_in_the_form_that_the_template_writes(template, arguments, expected):
    assert expected == template.render(prepared_messages(template, called(arguments, content=None)))


def test_content_that_is_null_is_empty():
    assert (
        PLAIN.render(prepared_messages(PLAIN, [{"role": "user", "content": None}, {"role": "tool"}]))
        == "user: \ntool: \n"
    )


def test_parts_of_text_are_joined_where_the_template_wants_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    each = ChatTemplate("{% for part in messages[0].content %}<{{ part.text }}>{% endfor %}")

    assert PLAIN.render(prepared_messages(PLAIN, [{"role": "user", "content": parts}])) == "user: ab\n"
    assert each.render(prepared_messages(each, [{"role": "user", "content": parts}])) == "<a><b>"


def test_an_image_is_left_to_the_template():
    parts = [{"type": "image"}, {"type": "text", "text": "b"}]

    assert prepared_messages(PLAIN, [{"role": "user", "content": parts}])[0]["content"] == parts


def test_reasoning_is_given_under_every_name():
    message = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    prepared = prepared_messages(PLAIN, [message])[0]

    assert (prepared["thinking"], prepared["reasoning"], prepared["reasoning_content"]) == ("hm", "hm", "hm")
    assert "thinking" not in message


def test_content_beside_a_call_keeps_its_place_before_reasoning():
    assert "thinking" not in prepared_messages(OBJECTS, called({}, content="Let me see.", reasoning_content="hm"))[0]


def test_reasoning_left_in_the_content_is_taken_out_where_the_template_has_a_place_for_it():
    template = ChatTemplate("{% for m in messages %}({{ m.reasoning_content }}){{ m.content }}{% endfor %}")
    messages = [{"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}]

    assert template.render(prepared_messages(template, messages)) == "(hm)Yes."
    assert PLAIN.render(prepared_messages(PLAIN, messages)) == "assistant: <think>\nhm\n</think>\n\nYes.\n"
    assert prepared_messages(template, [{"role": "user", "content": "<think>x</think>"}])[0]["content"][0] == "<"


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ("hello", "messages must be a list"),
        ({"role": "user"}, "messages must be a list"),
        (["hello"], r"messages\[0\]"),
        ([{"content": "x"}], r"messages\[0\].*role"),
        ([{"role": "user", "content": "x"}, {"role": 3}], r"messages\[1\].*role"),
        ([{"role": "assistant", "tool_calls": ["f"]}], r"messages\[0\]\.tool_calls\[0\].*function"),
        (called("{a: 1}"), r"tool_calls\[0\]\.function\.arguments is '\{a: 1\}'.*JSON object"),
        (called("[1]"), "JSON object"),
        (called("[" * 100_000), "JSON object"),
    ],
)
def test_what_is_no_message_is_named(messages, named):
    with pytest.raises(InputError, match=named):
        prepared_messages(OBJECTS, messages)


def test_a_template_says_what_it_reads():
    template = ChatTemplate("{% if enable_thinking %}{{ tools }}{% endif %}{% for m in messages %}{% endfor %}")

    assert template.reads("tools")
    assert template.reads("enable_thinking")
    assert not template.reads("documents")


SYSTEMS = [{"role": "system", "content": "a"}, {"role": "system", "content": [{"type": "text", "text": "b"}]}, {"role": "user", "content": "c"}]  # fmt: skip
ONE_SYSTEM = ChatTemplate(
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('one') }}{% endif %}"
    "{{ m.role }}: {{ m.content }};{% endfor %}"
)


def test_system_messages_at_the_beginning_become_one_where_the_template_takes_one():
    assert ONE_SYSTEM.render(prepared_messages(ONE_SYSTEM, SYSTEMS)) == "system: a\n\nb;user: c;"
    assert PLAIN.render(prepared_messages(PLAIN, SYSTEMS)) == "system: a\nsystem: b\nuser: c\n"
    assert prepared_messages(ONE_SYSTEM, SYSTEMS[:1]) == SYSTEMS[:1]
    later = [SYSTEMS[2], SYSTEMS[0]]
    with pytest.raises(InputError, match="one"):
        ONE_SYSTEM.render(prepared_messages(ONE_SYSTEM, later))


def test_a_developers_message_is_not_lost_where_only_the_first_is_read(shared):
    template = ChatTemplate((shared / "vocab/templates/openai-gpt-oss-120b.jinja").read_text())
    messages = [SYSTEMS[0], {"role": "developer", "content": [{"type": "text", "text": "be kind"}]}, SYSTEMS[2]]
    assert "a\n\nbe kind" in template.render(prepared_messages(template, messages))


@pytest.mark.parametrize("given", ["call-0123456789abcdef", "toolu_01", "x", "abcdefgh-", ""])
def test_ids_of_calls_suit_a_template_that_takes_nine_characters(shared, given):
    source = (shared / "vocab/templates/Mistral-Small-3.2-24B-Instruct-2506.jinja").read_text()
    template = ChatTemplate(source)
    call = {"type": "function", "id": given, "function": {"name": "f", "arguments": "{}"}}
    turn = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "tool_call_id": given, "content": "r"}]  # fmt: skip
    prepared = prepared_messages(template, [{"role": "user", "content": "x"}, *turn])
    short = prepared[1]["tool_calls"][0]["id"]
    assert len(short) == 9
    assert short.isalnum()
    assert prepared[2]["tool_call_id"] == short
    assert template.render(prepared).count(short) == 2
    assert turn[1]["tool_call_id"] == given
    assert prepared_messages(PLAIN, turn)[1]["tool_call_id"] == given


def test_a_template_is_not_tried_out_where_nothing_hangs_on_it(monkeypatch):
    rendered = []
    monkeypatch.setattr(ChatTemplate, "render", lambda *given, **_more: rendered.append(given) or "")
    template = ChatTemplate("{{ messages }}")
    prepared_messages(template, [SYSTEMS[0], SYSTEMS[2], {"role": "assistant", "content": "d"}])
    assert rendered == []


def test_an_id_of_nine_characters_stays(shared):
    template = ChatTemplate((shared / "vocab/templates/Mistral-Small-3.2-24B-Instruct-2506.jinja").read_text())
    assert (
        prepared_messages(template, [{"role": "tool", "tool_call_id": "abcdefgh1"}])[0]["tool_call_id"] == "abcdefgh1"
    )
