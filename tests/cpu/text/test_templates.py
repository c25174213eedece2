"""The chat templates of real models: as plain Jinja renders them, and with all that was said in its place."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from itertools import product

import pytest
from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hotset.errors import InputError
from hotset.text import ChatTemplate, prepared_messages

SYSTEM, HI, BYE = (
    {"role": role, "content": text} for role, text in [("system", "Be brief."), ("user", "Hi"), ("user", "Bye")]
)
HELLO = {"role": "assistant", "content": "Hello!", "reasoning_content": "A greeting."}
PLAIN = [HI]
WITH_SYSTEM = [SYSTEM, HI, HELLO, BYE]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells the {name}.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Über <b>"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
    for name in ("weather", "time")
]


def call(name, call_id, **arguments):
    return {"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}}


def result(text, call_id, name):
    return {"role": "tool", "content": text, "tool_call_id": call_id, "name": name}


ASKED = [HI, {"role": "assistant", "content": "", "tool_calls": [call("weather", "abcdefghi", city="Öslo", days=2)]}]
TOLD = [*ASKED, result("It rains.", "abcdefghi", "weather")]
ANSWERED = [SYSTEM, *TOLD, {"role": "assistant", "content": "Take a coat."}, BYE]
TWICE = [
    HI,
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Both at once.",
        "tool_calls": [call("weather", "abcdefghi", city="Öslo"), call("time", "jklmnopqr", city="Rome", days=1)],
    },
    result("It rains.", "abcdefghi", "weather"),
    result("Noon.", "jklmnopqr", "time"),
]
CONVERSATIONS = {
    "plain": PLAIN,
    "system": WITH_SYSTEM,
    "asked": ASKED,
    "told": TOLD,
    "answered": ANSWERED,
    "twice": TWICE,
}
ONE_CALL = {"meta-llama-Llama-3.1-8B-Instruct", "openai-gpt-oss-120b"}
# Their templates leave these out.
NO_CALLS = {"LFM2-8B-A1B"}
NO_TOOLS = {"deepseek-ai-DeepSeek-V3.1"}
# What a template puts behind the last message: as it comes, with thinking, without.
OPENINGS = {
    "GLM-4.6": ("<|assistant|>", "<|assistant|>", "<|assistant|>\n<think></think>"),
    "GLM-4.7-Flash": ("<|assistant|><think>", "<|assistant|><think>", "<|assistant|></think>"),
    "LFM2-8B-A1B": ("<|im_start|>assistant\n",) * 3,
    "MiniMax-M2": ("]~b]ai\n<think>\n",) * 3,
    "Mistral-Small-3.2-24B-Instruct-2506": ("[/INST]",) * 3,
    "Qwen-Qwen3-0.6B": ("assistant\n", "assistant\n", "assistant\n<think>\n\n</think>\n\n"),
    "Qwen3-Coder": ("<|im_start|>assistant\n",) * 3,
    "Qwen3.5-4B": ("assistant\n<think>\n", "assistant\n<think>\n", "assistant\n<think>\n\n</think>\n\n"),
    "deepseek-ai-DeepSeek-V3.1": ("<think></think>", "Assistant\uff5c><think>", "Assistant\uff5c><think></think>"),
    "google-gemma-4-31B-it": ("<|channel>thought\n<channel|>", "<|turn>model\n", "<|turn>model\n<|channel>thought\n<channel|>"),
    "ibm-granite-granite-4.0": ("<|start_of_role|>assistant<|end_of_role|>",) * 3,
    "meta-llama-Llama-3.1-8B-Instruct": ("<|start_header_id|>assistant<|end_header_id|>\n\n",) * 3,
    "moonshotai-Kimi-K2": ("<|im_assistant|>assistant<|im_middle|>",) * 3,
    "openai-gpt-oss-120b": ("<|start|>assistant",) * 3,
}  # fmt: skip
NAMES = sorted(OPENINGS)


class Generation(Extension):
    """What transformers has for training: the body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


@pytest.fixture(scope="module")
def plain_jinja():
    """Jinja's own sandbox, set up as transformers sets it up."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )

    def raise_exception(message):
        raise TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().astimezone().strftime(pattern)
    compiled = cache(environment.from_string)
    return lambda source, **variables: compiled(source).render({"bos_token": "<bos>", "eos_token": "<eos>"} | variables)


@pytest.fixture(scope="module")
def source_of(shared):
    return lambda name: (shared / "vocab" / "templates" / f"{name}.jinja").read_text()


@pytest.fixture(scope="module")
def template_of(source_of):
    return cache(lambda name: ChatTemplate(source_of(name), bos="<bos>", eos="<eos>"))


def test_every_shared_template_is_tested(shared):
    assert sorted(path.stem for path in (shared / "vocab" / "templates").glob("*.jinja")) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_templates_render_as_in_plain_jinja(source_of, template_of, plain_jinja, name, conversation):
    template = template_of(name)
    thinking = [{}, {"enable_thinking": True}, {"enable_thinking": False}, {"thinking": True}]

    for prompt, tools, variables in product((True, False), (None, TOOLS), thinking):
        given = {"messages": CONVERSATIONS[conversation], "tools": tools, "add_generation_prompt": prompt, **variables}
        try:
            expected = plain_jinja(source_of(name), **given)
        except TemplateError as error:
            with pytest.raises(InputError, match=str(error)[:20]):
                template.render(**given)
        else:
            assert expected == template.render(**given)


@pytest.mark.parametrize("name", NAMES)
def test_the_prompt_ends_where_the_answer_begins(template_of, name):
    template = template_of(name)
    as_it_comes, on, off = OPENINGS[name]

    assert template.render(PLAIN).endswith(as_it_comes)
    assert template.render(PLAIN, enable_thinking=True).endswith(on)
    assert template.render(PLAIN, enable_thinking=False).endswith(off)
    assert template.reads("enable_thinking") == (on != off)


@pytest.mark.parametrize("name", NAMES)
def test_all_that_was_said_is_there_in_order(template_of, name):
    text = template_of(name).render(WITH_SYSTEM)
    places = [text.index(message["content"]) for message in WITH_SYSTEM]

    assert sorted(places) == places
    assert "A greeting." not in text  # thoughts of earlier turns are dropped


@pytest.mark.parametrize("name", sorted({*NAMES} - NO_TOOLS))
def test_tools_are_described(template_of, name):
    text = template_of(name).render([SYSTEM, HI], tools=TOOLS)

    assert "Be brief." in text
    for word in ("weather", "Tells the weather.", "time", "Tells the time.", "city", "Über <b>"):
        assert word in text
    assert "weather" not in template_of(name).render([SYSTEM, HI])


@pytest.mark.parametrize("name", sorted({*NAMES} - NO_CALLS))
@pytest.mark.parametrize("as_text", [True, False])
def test_calls_and_results_are_there_in_order(template_of, name, as_text):
    template = template_of(name)
    messages = json.loads(json.dumps(ANSWERED))
    if as_text:  # OpenAI's form
        function = messages[2]["tool_calls"][0]["function"]
        function["arguments"] = json.dumps(function["arguments"])
        messages[2]["content"] = None
    text = template.render(prepared_messages(template, messages), tools=None)
    words = ["Be brief.", "Hi", "weather", "Öslo", "It rains.", "Take a coat.", "Bye"]
    places = [text.index(word) for word in words]

    assert sorted(places) == places
    assert '\\"' not in text


@pytest.mark.parametrize("name", sorted({*NAMES} - NO_CALLS - ONE_CALL))
def test_two_calls_at_once_are_both_there(template_of, name):
    text = template_of(name).render(TWICE, tools=TOOLS)
    places = [text.rindex(word) for word in ("Öslo", "Rome", "It rains.", "Noon.")]

    assert sorted(places) == places


@pytest.mark.parametrize(
    "name", ["GLM-4.6", "GLM-4.7-Flash", "MiniMax-M2", "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "google-gemma-4-31B-it", "openai-gpt-oss-120b"]
)  # fmt: skip
def test_thoughts_stay_between_a_call_and_its_result(template_of, name):
    template = template_of(name)
    told = json.loads(json.dumps(TOLD))
    told[1]["reasoning_content"] = "Look it up."

    assert "Look it up." in template.render(prepared_messages(template, told), tools=TOOLS)


def test_what_a_template_refuses_is_said_with_the_line(template_of):
    with pytest.raises(InputError, match=r"chat template, line \d+: Message has tool role"):
        template_of("openai-gpt-oss-120b").render([HI, result("x", "y", "z")])


def test_what_transformers_adds_is_there(plain_jinja):
    source = (
        "{% for m in messages %}\n  {% if loop.first %}{% continue %}{% endif %}\n{% generation %}{{ m|tojson(indent=2) }}{% endgeneration %}"
        "{{ [m, 'é<']|tojson }}{{ strftime_now('%Y') }}{% break %}{% endfor %}"
    )

    assert plain_jinja(source, messages=WITH_SYSTEM) == ChatTemplate(source).render(WITH_SYSTEM)
