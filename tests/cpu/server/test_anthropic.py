"""Anthropic's messages, by hand and by Anthropic's own client."""

from __future__ import annotations

import anthropic
import pytest

HELLO = [{"role": "user", "content": "The package contains"}]


@pytest.fixture(scope="module")
def client(demo):
    return anthropic.Anthropic(base_url=demo.url, api_key="unused", max_retries=0)


def test_the_anthropic_client_gets_one_answer_whole_and_streamed(client):
    asked = {
        "model": "demo",
        "max_tokens": 12,
        "system": "Be brief.",
        "messages": HELLO,
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**asked)
    assert whole.stop_reason in ("max_tokens", "end_turn")
    assert whole.usage.output_tokens <= 12
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_tokens_are_counted_as_they_are_computed(client, demo):
    asked = {"model": "demo", "messages": HELLO}
    counted = client.messages.count_tokens(**asked).input_tokens
    usage = demo.post("/v1/messages", {**asked, "max_tokens": 1})["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted


def test_a_stop_sequence_is_named(demo):
    asked = {"messages": HELLO, "max_tokens": 20, "temperature": 0}
    text = demo.post("/v1/messages", asked)["content"][0]["text"]
    stop = text[6:9]
    got = demo.post("/v1/messages", {**asked, "stop_sequences": ["never", stop]})
    assert (got["stop_reason"], got["stop_sequence"]) == ("stop_sequence", stop)
    assert got["content"][0]["text"] == text[: text.index(stop)]


def test_events_come_in_anthropics_order(demo):
    events = demo.events("/v1/messages", {"messages": HELLO, "max_tokens": 5, "temperature": 0})
    names = [name for name, _ in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert all(name == value["type"] for name, value in events)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": HELLO}, "max_tokens"),
        ({"messages": [], "max_tokens": 1}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}], "max_tokens": 1}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 1}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}], "max_tokens": 1}, "messages[0].content[0]"),
        ({"messages": HELLO, "max_tokens": 1, "tools": [{"type": "bash_20250124"}]}, "tools[0]"),
        ({"messages": HELLO, "max_tokens": 1, "tools": [{"name": "f"}]}, "tools"),
        ({"messages": HELLO, "max_tokens": 1, "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"messages": HELLO, "max_tokens": 1, "temperature": "1"}, "temperature"),
    ],
)  # fmt: skip
def test_errors_have_anthropics_form(demo, body, said):
    error = demo.post("/v1/messages", body, status=400)
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert error["error"]["message"].startswith(said)


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_that_is_too_long_is_refused_in_the_words_that_agents_know(demo, stream):
    body = {"messages": [{"role": "user", "content": "word " * 600}], "max_tokens": 1, "stream": stream}
    error = demo.post("/v1/messages", body, status=400)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"] == f"prompt is too long: {error['n_prompt_tokens']} tokens > 512 maximum"


def test_a_conversation_with_tools_and_thoughts_is_read(with_template):
    client = with_template("Qwen-Qwen3-0.6B")
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Weather in Paris?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should look.", "signature": ""},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]}
            ],
        },
    ]
    tools = [
        {
            "name": "weather",
            "description": "Weather",
            # Few answers fit, and all are short: a small model would else spell a name of a hundred tokens.
            "input_schema": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        }
    ]
    with_tools = client.post("/v1/messages/count_tokens", {"messages": messages, "tools": tools})["input_tokens"]
    without = client.post("/v1/messages/count_tokens", {"messages": messages})["input_tokens"]
    assert with_tools > without > 20
    got = client.post(
        "/v1/messages",
        {
            "messages": messages,
            "tools": tools,
            "max_tokens": 100,
            "temperature": 0,
            "tool_choice": {"type": "tool", "name": "weather"},
        },
    )
    use = next(block for block in got["content"] if block["type"] == "tool_use")
    assert use["name"] == "weather"
    assert use["input"]["city"] in ("Paris", "Rome")
    assert got["stop_reason"] == "tool_use"
