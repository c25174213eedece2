"""Reasoning and calls of tools, read from what a model wrote: streamed equal to whole, in every API."""

from __future__ import annotations

import json

import pytest

from server_models import saying
from serving_thread import serving

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
USER = [{"role": "user", "content": "Weather in Paris?"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
# What the model writes behind Qwen 3's prompt -> reasoning, content, calls.
SAID = {
    "thought, text and call": (
        f"<think>\nI should look.\n</think>\n\nLet me see.\n{CALL}",
        "I should look.",
        "Let me see.",
        1,
    ),
    "a call alone": (CALL, "", "", 1),
    "two calls": (f"{CALL}\n{CALL}", "", "", 2),
    "text alone": ("It is sunny.", "", "It is sunny.", 0),
    "a thought that is cut": ("<think>\nI should", "I should", "", 0),
    "what looks like a call": ("<tool_call>no call", "", "<tool_call>no call", 0),
}


@pytest.fixture(scope="module")
def qwen(shared):
    engine = saying((shared / "vocab/templates/Qwen-Qwen3-0.6B.jinja").read_text())
    with serving(lambda _progress: engine, n_parallel=2) as client:
        client.say = engine.say
        yield client


@pytest.mark.parametrize("name", SAID)
def test_a_chat_gives_the_parts_whole_and_streamed(qwen, name):
    text, reasoning, content, n_calls = SAID[name]
    qwen.say(text)
    body = {"messages": USER, "tools": TOOLS, "max_tokens": 400}
    choice = qwen.post("/v1/chat/completions", body)["choices"][0]
    message = choice["message"]
    calls = message.get("tool_calls", [])
    assert message.get("reasoning_content", "") == reasoning
    assert (message["content"] or "") == content
    assert len(calls) == n_calls
    assert choice["finish_reason"] == ("tool_calls" if n_calls else "stop")
    for call in calls:
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    streamed = {"content": "", "reasoning_content": ""}
    streamed_calls = []
    for _, chunk in qwen.events("/v1/chat/completions", body):
        delta = chunk["choices"][0]["delta"]
        for key in streamed:
            streamed[key] += delta.get(key) or ""
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(streamed_calls)
                streamed_calls.append({"name": call["function"]["name"], "arguments": ""})
            streamed_calls[call["index"]]["arguments"] += call["function"]["arguments"]
    assert streamed == {"content": content, "reasoning_content": reasoning}
    assert streamed_calls == [c["function"] for c in calls]


@pytest.mark.parametrize("name", SAID)
def test_anthropics_form_has_the_same_parts_whole_and_streamed(qwen, name):
    text, reasoning, content, n_calls = SAID[name]
    qwen.say(text)
    tools = [{"name": "weather", "input_schema": TOOLS[0]["function"]["parameters"]}]
    body = {"messages": USER, "tools": tools, "max_tokens": 400}
    whole = qwen.post("/v1/messages", body)
    kinds = [
        *(["thinking"] if reasoning else []),
        *(["text"] if content or not (n_calls or reasoning) else []),
        *["tool_use"] * n_calls,
    ]
    assert [block["type"] for block in whole["content"]] == kinds
    assert whole["stop_reason"] == ("tool_use" if n_calls else "end_turn")
    blocks = []
    for kind, event in qwen.events("/v1/messages", body):
        if kind == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
        elif kind == "content_block_delta":
            delta = event["delta"]
            for field, at in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                blocks[-1][at] = blocks[-1].get(at, "") + delta.get(field, "")
    for block, expected in zip(blocks, whole["content"], strict=True):
        assert block["type"] == expected["type"]
        if block["type"] == "tool_use":
            assert json.loads(block["json"]) == expected["input"] == {"city": "Paris"}
        else:
            assert block[block["type"]] == expected[block["type"]]


@pytest.mark.parametrize("name", SAID)
def test_a_response_has_them_as_items(qwen, name):
    text, reasoning, content, n_calls = SAID[name]
    qwen.say(text)
    body = {"input": "Weather?", "tools": [{"type": "function", **TOOLS[0]["function"]}]}
    output = qwen.post("/v1/responses", body)["output"]
    kinds = [*(["reasoning"] if reasoning else []), *(["message"] if content or not (n_calls or reasoning) else [])]
    assert [item["type"] for item in output] == kinds + ["function_call"] * n_calls
    events = qwen.events("/v1/responses", body)
    last = events[-1][1]["response"]["output"]

    def bare(items):
        return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]

    assert bare(last) == bare(output)
    done = [e["item"] for name, e in events if name == "response.output_item.done"]
    assert bare(done) == bare(output)
    for kind in ("output_text", "reasoning_text", "function_call_arguments"):
        deltas = "".join(e["delta"] for name, e in events if name == f"response.{kind}.delta")
        finals = [e for name, e in events if name == f"response.{kind}.done"]
        assert deltas == "".join(e.get("text", e.get("arguments", "")) for e in finals)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_takes_one_call_gets_one(qwen, stream):
    qwen.say(f"{CALL}\n{CALL}")
    chat = {"messages": USER, "tools": TOOLS, "parallel_tool_calls": False}
    response = {"input": "x", "tools": [{"type": "function", **TOOLS[0]["function"]}], "parallel_tool_calls": False}
    tool = {"name": "weather", "input_schema": TOOLS[0]["function"]["parameters"]}
    message = {"messages": USER, "tools": [tool], "max_tokens": 400, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}  # fmt: skip
    if stream:
        deltas = [c["choices"][0]["delta"] for _, c in qwen.events("/v1/chat/completions", chat)]
        assert {call["index"] for d in deltas for call in d.get("tool_calls", [])} == {0}
        output = qwen.events("/v1/responses", response)[-1][1]["response"]["output"]
        blocks = [e["content_block"] for name, e in qwen.events("/v1/messages", message) if name == "content_block_start"]  # fmt: skip
    else:
        choice = qwen.post("/v1/chat/completions", chat)["choices"][0]
        assert (len(choice["message"]["tool_calls"]), choice["finish_reason"]) == (1, "tool_calls")
        output = qwen.post("/v1/responses", response)["output"]
        blocks = qwen.post("/v1/messages", message)["content"]
    assert [item["type"] for item in output] == ["function_call"]
    assert [block["type"] for block in blocks] == ["tool_use"]


def test_a_response_counts_its_reasoning_and_says_what_was_cut(qwen):
    qwen.say("<think>\nI should look.\n</think>\n\nLet me see.")
    whole = qwen.post("/v1/responses", {"input": "Weather?"})
    n = whole["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert 0 < n < whole["usage"]["output_tokens"]
    assert [item["status"] for item in whole["output"]] == ["completed", "completed"]
    last = qwen.events("/v1/responses", {"input": "Weather?"})[-1][1]["response"]
    assert last["usage"]["output_tokens_details"] == {"reasoning_tokens": n}
    limit = whole["usage"]["output_tokens"] - 3
    cut = qwen.post("/v1/responses", {"input": "Weather?", "max_output_tokens": limit})
    assert cut["status"] == "incomplete"
    assert [item["status"] for item in cut["output"]] == ["completed", "incomplete"]
    qwen.say("Let me see.")
    plain = qwen.post("/v1/responses", {"input": "Weather?"})
    assert plain["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


def test_items_of_an_earlier_turn_are_read(qwen):
    items = [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    qwen.say("Sunny.")
    got = qwen.post("/v1/responses", {"input": items, "instructions": "Be brief."})
    assert got["output"][0]["content"][0]["text"] == "Sunny."


def test_without_tools_or_with_none_chosen_a_call_is_text(qwen):
    qwen.say(CALL)
    for body in ({"messages": USER}, {"messages": USER, "tools": TOOLS, "tool_choice": "none"}):
        message = qwen.post("/v1/chat/completions", {**body, "max_tokens": 400})["choices"][0]["message"]
        assert "tool_calls" not in message
        assert message["content"] == CALL


def test_a_call_can_be_demanded_of_any_model(demo, with_template):
    for client in (demo, with_template("Qwen-Qwen3-0.6B")):
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            body = {"messages": USER, "tools": TOOLS, "tool_choice": choice, "max_tokens": 200, "temperature": 0}
            got = client.post("/v1/chat/completions", body)["choices"][0]
            if got["finish_reason"] != "length":
                call = got["message"]["tool_calls"][0]["function"]
                assert call["name"] == "weather"
                assert isinstance(json.loads(call["arguments"])["city"], str)


def test_a_prompt_with_tools_is_refused_where_the_answer_would_be(demo):
    error = demo.post("/apply-template", {"messages": USER, "tools": TOOLS}, status=400)["error"]
    assert error["param"] == "tools"


def test_tools_are_refused_where_the_model_cannot_be_told_of_them(demo):
    error = demo.post("/v1/chat/completions", {"messages": USER, "tools": TOOLS}, status=400)["error"]
    assert error["param"] == "tools"


def test_a_schema_holds_only_behind_an_open_thought(shared):
    engine = saying((shared / "vocab/templates/Qwen3.5-4B.jinja").read_text())
    form = {"type": "json_schema", "json_schema": {"schema": {"const": 7}}}
    with serving(lambda _progress: engine) as client:
        prompt = client.post("/apply-template", {"messages": USER})["prompt"]
        assert prompt.rstrip().endswith("<think>")
        engine.say("Well, {seven}.\n</think>\n\nnine")
        message = client.post("/v1/chat/completions", {"messages": USER, "response_format": form, "max_tokens": 60})[
            "choices"
        ][0]["message"]
    assert message["reasoning_content"] == "Well, {seven}."
    assert json.loads(message["content"]) == 7


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "GLM-4.6", "openai-gpt-oss-120b", "meta-llama-Llama-3.1-8B-Instruct", "moonshotai-Kimi-K2"])  # fmt: skip
def test_the_demo_model_runs_behind_any_template(with_template, name):
    client = with_template(name)
    body = {"messages": USER, "tools": TOOLS, "max_tokens": 8, "seed": 1}
    whole = client.post("/v1/chat/completions", body)["choices"][0]["message"]
    pieces = [c["choices"][0]["delta"] for _, c in client.events("/v1/chat/completions", body)]
    assert "".join(p.get("content") or "" for p in pieces) == (whole["content"] or "")


TEMPLATES = (
    "GLM-4.6", "GLM-4.7-Flash", "LFM2-8B-A1B", "MiniMax-M2", "Mistral-Small-3.2-24B-Instruct-2506", "Qwen-Qwen3-0.6B", "Qwen3-Coder",
    "Qwen3.5-4B", "google-gemma-4-31B-it", "ibm-granite-granite-4.0", "meta-llama-Llama-3.1-8B-Instruct",
    "moonshotai-Kimi-K2", "openai-gpt-oss-120b",
)  # fmt: skip


@pytest.fixture(scope="module", params=TEMPLATES)
def family(request, shared):
    engine = saying((shared / f"vocab/templates/{request.param}.jinja").read_text())
    with serving(lambda _progress: engine) as client:
        yield client


@pytest.mark.parametrize("function", [{}, {"description": None, "parameters": None}, {"parameters": {}}, {"description": "d", "strict": True}])  # fmt: skip
def test_a_tool_may_leave_out_what_openai_lets_it(family, function):
    tools = [{"type": "function", "function": {"name": "look_up", **function}}]
    assert "look_up" in family.post("/apply-template", {"messages": USER, "tools": tools})["prompt"]


def test_an_agents_turn_goes_on_with_any_family(family):
    call = {
        "id": "call-0123456789abcdef",
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"q": "x"}'},
    }
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": "be kind"},
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "found it"}]},
    ]
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    prompt = family.post("/apply-template", {"messages": messages, "tools": tools})["prompt"]
    for said in ("be brief", "be kind", "look_up", "found it"):
        assert said in prompt


def test_control_tokens_that_a_user_writes_stay_text(with_template):
    client = with_template("Qwen-Qwen3-0.6B")
    end = "<|im_end|>"
    plain = client.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hello"}]})
    tricky = client.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": f"hello{end}"}]})
    assert tricky["input_tokens"] >= plain["input_tokens"] + 1


@pytest.mark.parametrize("source", ["{% for i in range(10**9) %}x{% endfor %}", "{{ 'x' * 10**9 }}", "{{ raise_exception('no') }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"])  # fmt: skip
def test_a_hostile_template_is_an_error_and_the_server_lives(source):
    engine = saying(source)
    with serving(lambda _progress: engine) as client:
        error = client.post("/v1/chat/completions", {"messages": USER}, status=400)["error"]
        assert error["message"].startswith("chat template")
        assert client.get("/health")["status"] == "ok"
