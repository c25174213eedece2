"""Answers taken apart: each family's own way to write reasoning and calls, in any pieces."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotset.text import Answer, AnswerParser, Call, ChatTemplate, parse_answer, prepared_messages
from hotset.text.feed import merged

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does it.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "tags": {"type": "array"},
                    "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
            },
        },
    }
    for name in ("weather", "time")
]
ARGUMENTS = {"city": 'Ö "x" <b>\n{y}, ]', "days": 2, "exact": True, "tags": ["a", {"b": None}], "zip": "0815"}
USER = {"role": "user", "content": "Weather?"}
END = ("<|im_end|>", "[e~[", "<|end_of_text|>", "<eos>", "<|eot_id|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|call|>", "<|return|>", "<turn|>", "<|tool_response>")  # fmt: skip
SHARED = {
    "deepseek": "deepseek-ai-DeepSeek-V3.1",
    "gemma": "google-gemma-4-31B-it",
    "glm 4.6": "GLM-4.6",
    "glm 4.7": "GLM-4.7-Flash",
    "granite": "ibm-granite-granite-4.0",
    "harmony": "openai-gpt-oss-120b",
    "kimi": "moonshotai-Kimi-K2",
    "liquid": "LFM2-8B-A1B",
    "llama": "meta-llama-Llama-3.1-8B-Instruct",
    "minimax": "MiniMax-M2",
    "mistral": "Mistral-Small-3.2-24B-Instruct-2506",
    "qwen": "Qwen-Qwen3-0.6B",
    "qwen 3.5": "Qwen3.5-4B",
    "qwen coder": "Qwen3-Coder",
}
REASONING = ["deepseek", "gemma", "glm 4.6", "glm 4.7", "harmony", "minimax", "qwen", "qwen 3.5"]
FAMILIES = sorted(SHARED)
# So that the prompt ends as a past answer without thoughts begins.
THINKING = {"glm 4.7": {"enable_thinking": False}, "gemma": {"enable_thinking": True}}


@pytest.fixture(scope="module")
def template_of(shared):
    @cache
    def load(family: str) -> ChatTemplate:
        source = (shared / "vocab" / "templates" / f"{SHARED[family]}.jinja").read_text()
        return ChatTemplate(source, bos="<bos>", eos="<eos>")

    return load


@pytest.fixture(scope="module")
def written(template_of):
    """The prompt, and what the model must have written for the template to render `message` in its place."""

    def write(family, message, **variables):
        template, variables = template_of(family), THINKING.get(family, {}) | variables
        prompt = template.render([USER], tools=TOOLS, **variables)
        messages = prepared_messages(template, [USER, {"role": "assistant", "content": "", **message}])
        whole = template.render(messages, tools=TOOLS, add_generation_prompt=False, **variables)
        if not whole.startswith(prompt):  # MiniMax's writes past answers without their empty thoughts
            prompt = prompt.removesuffix("<think>\n")
        assert whole.startswith(prompt)
        text = whole[len(prompt) :].rstrip("\n")
        return prompt, next((text.removesuffix(end) for end in END if text.endswith(end)), text)

    return write


def called(name, call_id, **arguments):
    return {"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}}


def calls_of(answer):
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


CALLERS = sorted({*FAMILIES} - {"liquid"})


@pytest.mark.parametrize("family", CALLERS)
def test_a_call_is_read_as_its_template_writes_it(template_of, written, family):
    prompt, text = written(family, {"tool_calls": [called("weather", "abcdefghi", **ARGUMENTS)]})
    answer = parse_answer(text, template_of(family).source, prompt=prompt, tools=TOOLS)

    assert calls_of(answer) == [("weather", ARGUMENTS)]
    assert (answer.content, answer.reasoning) == ("", "")


@pytest.mark.parametrize("family", sorted({*CALLERS} - {"harmony", "llama"}))
def test_content_and_two_calls_are_read_as_their_template_writes_them(template_of, written, family):
    calls = [called("weather", "abcdefghi", **ARGUMENTS), called("time", "jklmnopqr", city="Rome")]
    content = "" if family in ("gemma", "mistral") else "Let me see.\nNow:"  # these write no content beside calls
    prompt, text = written(family, {"content": content, "tool_calls": calls})
    answer = parse_answer(text, template_of(family).source, prompt=prompt, tools=TOOLS)

    assert calls_of(answer) == [("weather", ARGUMENTS), ("time", {"city": "Rome"})]
    assert answer.content == content


@pytest.mark.parametrize("family", sorted({*REASONING} - {"deepseek"}))
def test_reasoning_and_a_call_are_read_as_their_template_writes_them(template_of, written, family):
    message = {"reasoning_content": "First\n\nsecond.", "tool_calls": [called("time", "abcdefghi", city="Rome")]}
    prompt, text = written(family, message, enable_thinking=True)
    answer = parse_answer(text, template_of(family).source, prompt=prompt, tools=TOOLS)

    assert answer.reasoning == "First\n\nsecond."
    assert calls_of(answer) == [("time", {"city": "Rome"})]
    assert answer.content == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_without_calls_is_content(template_of, written, family):
    message = {"content": 'Sun.\n\n{"a": 1}'}
    prompt, text = written(family, message)

    for tools in (TOOLS, None):
        answer = parse_answer(text, template_of(family).source, prompt=prompt, tools=tools)
        assert (answer.content, answer.reasoning, answer.calls) == (message["content"], "", ())


D = "<\uff5ctool\u2581call{}\uff5c>"  # DeepSeek's marks
DEEPSEEK_CALLS = (
    D.format("s\u2581begin") + D.format("\u2581begin") + "time<\uff5ctool\u2581sep\uff5c>{}" + D.format("\u2581end") + D.format("s\u2581end")
)  # fmt: skip
SAMPLES = [
    # family, end of the prompt, text, content, reasoning, calls
    ("qwen", "", "<think>\nhm\n</think>\n\nYes.\n", "Yes.\n", "hm", []),
    ("qwen", "", "  <think>a</think> b", "b", "a", []),
    ("qwen", "", "Yes. <think> is a tag.", "Yes. <think> is a tag.", "", []),
    ("qwen", "", "<think>cut off", "", "cut off", []),
    ("qwen", "", "<think>\n\n</think>\n\nYes.", "Yes.", "", []),
    ("qwen", "<think>\n", "hm\n</think>\nYes.", "Yes.", "hm", []),
    ("qwen", "<think>", "<think>hm</think>Yes.", "Yes.", "hm", []),
    ("qwen", "<think>\n\n</think>\n\n", "Yes.", "Yes.", "", []),
    ("qwen", "", "<think>a<tool_call>b</think>c", "c", "a<tool_call>b", []),
    ("qwen", "", '<tool_call>{"arguments": {"city": "x"}, "name": "time"}</tool_call>', "", "", [("time", '{"city": "x"}')]),
    ("qwen", "", '<tool_call>{"name": "time", "arguments": "{\\"city\\": 1}"}</tool_call>', "", "", [("time", '{"city": 1}')]),
    ("qwen", "", '<tool_call>{"name": "time"}</tool_call> Done.', "Done.", "", [("time", "{}")]),
    ("qwen", "", '<tool_call>{"name": "time", "arguments": {"city": "</tool_call>"}}\n</tool_call>', "", "", [("time", '{"city": "</tool_call>"}')]),
    ("qwen", "", '<tool_call>{"name": "time", "arguments": {"city": "Ro', "", "", [("time", '{"city": "Ro')]),
    ("qwen", "", "a \n<tool_call> is a tag", "a \n<tool_call> is a tag", "", []),
    ("qwen", "", '<tool_call>{"nam', '<tool_call>{"nam', "", []),
    ("qwen", "", '<tool_call>{"name": 3, "arguments": {}}</tool_call>', '<tool_call>{"name": 3, "arguments": {}}</tool_call>', "", []),
    ("qwen", "", "a <tool_", "a <tool_", "", []),
    ("qwen coder", "", "<tool_call>\n<function=time>\n</function>\n</tool_call>", "", "", [("time", "{}")]),
    ("qwen coder", "", "<tool_call>\n<function=time>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=zip>\nNone\n</parameter>\n</function>\n</tool_call>", "", "", [("time", '{"exact": true, "zip": null}')]),
    ("qwen coder", "", "<tool_call>\n<function=other>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>", "", "", [("other", '{"n": 5}')]),
    ("qwen coder", "", "<tool_call>\n<function=time>\n<parameter=city>\n\n a\nb \n\n</parameter>\n</function>", "", "", [("time", '{"city": "\\n a\\nb \\n"}')]),
    ("qwen coder", "", "<tool_call>\n<function=time>\n<parameter=city>\nRo", "", "", [("time", "")]),
    ("qwen coder", "", "see <tool_call> here", "see <tool_call> here", "", []),
    ("glm 4.6", "", "the <tool_call> tag\n<tool_call>time\n<arg_key>city</arg_key>\n<arg_value>7</arg_value>\n</tool_call>", "the <tool_call> tag", "", [("time", '{"city": "7"}')]),
    ("glm 4.6", "", "<tool_call>time</tool_call>\n<tool_call>weather</tool_call>", "", "", [("time", "{}"), ("weather", "{}")]),
    ("glm 4.6", "", "<tool_call>tim", "<tool_call>tim", "", []),
    ("kimi", "", "<|tool_calls_section_begin|><|tool_call_begin|>functions.time:3<|tool_call_argument_begin|> {} <|tool_call_end|><|tool_calls_section_end|>", "", "", [("time", "{}")]),
    ("deepseek", "<think>", "hm</think>" + DEEPSEEK_CALLS, "", "hm", [("time", "{}")]),
    ("mistral", "", '[TOOL_CALLS]time[ARGS]{"city": "x"}', "", "", [("time", '{"city": "x"}')]),
    ("mistral", "", '[TOOL_CALLS] [{"name": "time", "arguments": {"city": "x"}}, {"name": "weather", "arguments": {}}]', "", "", [("time", '{"city": "x"}'), ("weather", "{}")]),
    ("llama", "", '<|python_tag|>{"name": "time", "parameters": {"city": "x"}}', "", "", [("time", '{"city": "x"}')]),
    ("llama", "", '{"type": "function", "name": "time", "parameters": {}}; {"name": "weather", "parameters": {}}', "", "", [("time", "{}"), ("weather", "{}")]),
    ("llama", "", '{ "name": "Bob",  "age": 3 }\n', '{ "name": "Bob",  "age": 3 }\n', "", []),
    ("llama", "", '<|python_tag|>search.call(query="x")', '<|python_tag|>search.call(query="x")', "", []),
    ("llama", "", "{", "{", "", []),
    ("liquid", "", 'Let me see.\n<|tool_call_start|>[time(city="x", days=-2, exact=True, zip=None)]<|tool_call_end|>\nDone.', "Let me see.Done.", "", [("time", '{"city": "x", "days": -2, "exact": true, "zip": null}')]),
    ("liquid", "", '<|tool_call_start|>[{"name": "time", "arguments": {"city": "x"}}]<|tool_call_end|>', "", "", [("time", '{"city": "x"}')]),
    ("liquid", "", "<|tool_call_start|>[time(__import__('os'))]<|tool_call_end|>", "", "", [("time", "{}")]),
    ("liquid", "", "<|tool_call_start|>[time(x=open('a'))]<|tool_call_end|>", "<|tool_call_start|>[time(x=open('a'))]<|tool_call_end|>", "", []),
    ("liquid", "", "<|tool_call_start|>[time(x=b'a')]<|tool_call_end|>", "<|tool_call_start|>[time(x=b'a')]<|tool_call_end|>", "", []),
    ("gemma", "", "<|channel>thought\nhm\n<channel|>Yes.", "Yes.", "hm", []),
    ("gemma", "", '<|tool_call>call:time{city:<|"|>a,}b<|"|>,tags:[1,{<|"|>k<|"|>:[]}],zip:null}<tool_call|>', "", "", [("time", '{"city": "a,}b", "tags": [1, {"k": []}], "zip": null}')]),
    ("gemma", "", "<|tool_call>call:time{}<tool_call|>", "", "", [("time", "{}")]),
    ("gemma", "", "<|tool_call>call:time{city:}<tool_call|>", "<|tool_call>call:time{city:}<tool_call|>", "", []),
    ("gemma", "", "<|tool_call>call:time{a:" + "[" * 500, "<|tool_call>call:time{a:" + "[" * 500, "", []),
    ("harmony", "", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.", "Yes.", "hm", []),
    ("harmony", "", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>", "", "a\n\nb", []),
    ("harmony", "", "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant<|channel|>commentary to=functions.time <|constrain|>json<|message|>{} ", "I will look.", "", [("time", "{}")]),
    ("harmony", "", ' to=functions.time<|channel|>commentary json<|message|>{"a": 1}<|call|>', "", "", [("time", '{"a": 1}')]),
    ("harmony", "", "Plain words.", "Plain words.", "", []),
    ("harmony", "", "Plain<|channel|>final<|message|>words", "Plainwords", "", []),
    ("harmony", "", "<|channel|>final<|message|>", "", "", []),
    ("harmony", "", "<|channel|>fin", "", "", []),
    ("minimax", "<think>\n", 'hm\n</think>\n\nA.\n<minimax:tool_call>\n<invoke name="time">\n</invoke>\n</minimax:tool_call>', "A.", "hm", [("time", "{}")]),
    ("minimax", "", '<minimax:tool_call>\n<invoke name="time">\n<parameter name="city">Ro', "", "", [("time", "")]),
]  # fmt: skip


@pytest.mark.parametrize(("family", "prompt", "text", "content", "reasoning", "calls"), SAMPLES)
def test_what_models_write_is_taken_apart(template_of, family, prompt, text, content, reasoning, calls):
    answer = parse_answer(text, template_of(family).source, prompt=prompt, tools=TOOLS)

    assert (answer.content, answer.reasoning) == (content, reasoning)
    assert [(call.name, call.arguments) for call in answer.calls] == calls


def taken_apart(template, prompt, pieces):
    parser = AnswerParser(template, prompt=prompt, tools=TOOLS)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    return merged([*deltas, *parser.flush()])


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample[0])
def test_letter_by_letter_gives_the_same(template_of, sample):
    family, prompt, text, *_ = sample
    source = template_of(family).source

    assert taken_apart(source, prompt, [text]) == taken_apart(source, prompt, text)


WORDS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=", "time", ">", "<parameter=city>", "</parameter>", "</function>", '{"name": "time",',
    ' "arguments": {', "}", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", '<invoke name="time">', "</invoke>", "<minimax:tool_call>",
    "</minimax:tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|channel|>", "final", "analysis", "<|message|>", "<|end|>", "<|start|>", " to=functions.time", "<|tool_call>",
    "call:time{", "<tool_call|>", '<|"|>', "<|channel>thought\n", "<channel|>", "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_calls_section_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_calls_section_end|>", "<|python_tag|>", "<|tool_call_start|>", "<|tool_call_end|>", "[time()]", " ", "\n", "a", "<", '"', "\\", ",", ":", ";",
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@given(parts=st.lists(st.sampled_from(WORDS), max_size=14), cuts=st.lists(st.integers(0, 200)), opened=st.booleans())
@example(parts=['{"name": "time",', ' "arguments": {', "}", "}"], cuts=[3], opened=False)
@settings(max_examples=40, deadline=None)
def test_pieces_do_not_matter(template_of, family, parts, cuts, opened):
    text, source = "".join(parts), template_of(family).source
    pieces = [text[a:b] for a, b in pairwise([0, *sorted(min(cut, len(text)) for cut in cuts), len(text)])]
    prompt = "<think>" if opened else ""
    whole = taken_apart(source, prompt, [text])

    assert whole == taken_apart(source, prompt, pieces)
    assert whole == taken_apart(source, prompt, text)
    assert [delta.index for delta in whole if delta.kind == "call"] == list(range(sum(d.kind == "call" for d in whole)))


@pytest.mark.parametrize("family", FAMILIES)
@given(text=st.text(st.characters(exclude_characters="<[{>"), max_size=60))
def test_plain_text_is_content_and_nothing_is_lost(template_of, family, text):
    answer = parse_answer(text, template_of(family).source, tools=TOOLS)

    assert answer == Answer(answer.content, "", ())
    assert answer.content.strip() == text.strip() if family == "harmony" else answer.content == text


@pytest.mark.parametrize(
    ("family", "begin"),
    [("qwen", "<tool_call>"), ("mistral", "[TOOL_CALLS]"), ("kimi", "<|tool_calls_section_begin|>")],
)
def test_without_tools_calls_are_not_looked_for(template_of, family, begin):
    text = f'{begin}{{"name": "time", "arguments": {{}}}}'

    assert parse_answer(text, template_of(family).source) == Answer(text, "", ())


def test_content_and_arguments_stream_as_they_come(template_of):
    parser = AnswerParser(template_of("qwen").source, tools=TOOLS)
    seen = [
        [(d.kind, d.text) for d in parser.push(piece)]
        for piece in ["Let", " me", ' <tool_call>{"name": "time", "argu', 'ments": {"city"', ': "x"}', "}</tool_call>"]
    ]

    assert seen == [
        [("content", "Let")],
        [("content", " me")],
        [("call", "time")],
        [("arguments", '{"city"')],
        [("arguments", ': "x"}')],
        [],
    ]  # fmt: skip


def test_the_id_that_a_model_gives_is_kept(template_of):
    kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.time:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    mistral = "[TOOL_CALLS]time[CALL_ID]abcdefghi[ARGS]{}"

    assert parse_answer(kimi, template_of("kimi").source, tools=TOOLS).calls == (
        Call("time", "{}", "functions.time:0"),
    )
    assert parse_answer(mistral, template_of("mistral").source, tools=TOOLS).calls == (Call("time", "{}", "abcdefghi"),)


def test_a_template_without_reasoning_or_calls_leaves_all_as_content():
    text = "<think>a</think><tool_call>b</tool_call>"

    assert parse_answer(text, "{{ messages }}", tools=TOOLS) == Answer(text, "", ())


@pytest.mark.parametrize(
    "tools",
    [
        [{}],
        [{"function": 3}],
        [{"function": {"name": "time", "parameters": [1]}}],
        [{"name": "time", "parameters": {"properties": {"city": 1}}}],
    ],
)
def test_tools_of_another_form_do_no_harm(template_of, tools):
    text = "<tool_call>time<arg_key>city</arg_key><arg_value>x</arg_value></tool_call>"

    assert calls_of(parse_answer(text, template_of("glm 4.6").source, tools=tools)) == [("time", {"city": "x"})]
