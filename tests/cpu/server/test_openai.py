"""OpenAI's chats and completions: whole and streamed the same, by hand and by OpenAI's own client."""

from __future__ import annotations

import math

import openai
import pytest

HELLO = [{"role": "user", "content": "The package contains"}]
SETTINGS = {"seed": 7, "max_tokens": 12, "temperature": 1.0}


@pytest.fixture(scope="module")
def client(demo):
    return openai.OpenAI(base_url=f"{demo.url}/v1", api_key="unused", max_retries=0)


def test_the_openai_client_chats_whole_and_streamed_with_one_text(client):
    whole = client.chat.completions.create(model="demo", messages=HELLO, **SETTINGS)
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.completion_tokens <= 12
    chunks = list(
        client.chat.completions.create(
            model="demo", messages=HELLO, stream=True, stream_options={"include_usage": True}, **SETTINGS
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_the_openai_client_completes_lists_models_and_asks_for_a_response(client):
    done = client.completions.create(model="demo", prompt="The package", n=2, logprobs=3, **SETTINGS)
    assert [c.index for c in done.choices] == [0, 1]
    assert done.choices[0].text != done.choices[1].text
    assert client.models.list().data[0].id == "demo"
    assert client.models.retrieve("demo").id == "demo"
    response = client.responses.create(model="demo", input="The package", max_output_tokens=8)
    assert response.status == "incomplete"
    assert response.output_text


def test_a_response_streams_what_it_is_whole(client):
    events = list(
        client.responses.create(model="demo", input="The package", max_output_tokens=8, temperature=0, stream=True)
    )
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    last = events[-1].response
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == last.output_text
    assert (
        text
        == client.responses.create(model="demo", input="The package", max_output_tokens=8, temperature=0).output_text
    )


def test_answers_are_those_of_the_engine(demo):
    engine = demo.scheduler.engine
    expected = engine.generate("The package", seed=7, max_tokens=12, temperature=1.0)
    got = demo.post("/v1/completions", {"prompt": "The package", **SETTINGS})
    assert got["choices"][0]["text"] == expected.text
    assert got["usage"]["prompt_tokens"] == expected.prompt_tokens
    ids = engine.tokenize("The package")
    assert demo.post("/v1/completions", {"prompt": ids, **SETTINGS})["choices"][0]["text"] == expected.text
    streamed = demo.events("/v1/completions", {"prompt": "The package", **SETTINGS})
    assert "".join(e["choices"][0]["text"] for _, e in streamed) == expected.text


def test_several_prompts_and_answers_have_their_own_seeds_and_places(demo):
    asked = {"prompt": ["The package", "A library"], "n": 2, **SETTINGS}
    got = demo.post("/v1/completions", asked)
    alone = [
        demo.post("/v1/completions", {**SETTINGS, "prompt": p, "seed": 7 + i}) for p in asked["prompt"] for i in (0, 1)
    ]
    assert [c["text"] for c in got["choices"]] == [a["choices"][0]["text"] for a in alone]
    assert got["usage"]["completion_tokens"] == sum(a["usage"]["completion_tokens"] for a in alone)
    pieces = [""] * 4
    for _, chunk in demo.events("/v1/completions", asked):
        for choice in chunk["choices"]:
            pieces[choice["index"]] += choice["text"]
    assert pieces == [c["text"] for c in got["choices"]]


def test_an_echo_repeats_the_prompt(demo):
    got = demo.post("/v1/completions", {"prompt": "The package", "echo": True, "max_tokens": 1})
    assert got["choices"][0]["text"].startswith("The package")


def test_logprobs_are_of_the_model_and_bytes_are_the_tokens(demo):
    asked = {"messages": HELLO, "logprobs": True, "top_logprobs": 20, **SETTINGS}
    got = demo.post("/v1/chat/completions", asked)["choices"][0]
    content = got["logprobs"]["content"]
    assert b"".join(bytes(t["bytes"]) for t in content).decode("utf-8", "replace") == got["message"]["content"]
    for token in content:
        top = [t["logprob"] for t in token["top_logprobs"]]
        assert top == sorted(top, reverse=True)
        assert sum(map(math.exp, top)) <= 1 + 1e-9
        assert token["logprob"] <= top[0]
    chunks = [e["choices"][0] for _, e in demo.events("/v1/chat/completions", asked) if e["choices"]]
    streamed = [t for c in chunks if c.get("logprobs") for t in c["logprobs"]["content"]]
    assert streamed == content


def test_a_bias_forbids_and_forces_tokens(demo):
    ids = demo.scheduler.engine.tokenize(" the")
    got = demo.post(
        "/v1/completions", {"prompt": "The", "max_tokens": 3, "logit_bias": {str(ids[0]): 100}, "temperature": 0}
    )
    assert got["choices"][0]["text"].startswith(" the")


def test_a_prompt_that_was_asked_before_is_told_to_be_cached(demo):
    prompt = "A prompt of this test alone, long enough to be seen. " * 5
    first = demo.post("/v1/completions", {"prompt": prompt, **SETTINGS})
    again = demo.post("/v1/completions", {"prompt": prompt, **SETTINGS})
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == first["usage"]["prompt_tokens"] - 1
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert again["timings"]["prompt_n"] == 1


def test_a_stop_text_ends_an_answer(demo):
    whole = demo.post("/v1/completions", {"prompt": "The package", "max_tokens": 20, "temperature": 0})["choices"][0][
        "text"
    ]
    stop = whole[5:8]
    cut = demo.post("/v1/completions", {"prompt": "The package", "max_tokens": 20, "temperature": 0, "stop": stop})[
        "choices"
    ][0]
    assert cut["text"] == whole[: whole.index(stop)]
    assert cut["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ("/v1/chat/completions", {"messages": HELLO, "top_logprobs": 3}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": HELLO, "n": 17}, "n"),
        ("/v1/chat/completions", {"messages": HELLO, "tools": [{"type": "function"}]}, "tools[0]"),
        ("/v1/chat/completions", {"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        ("/v1/chat/completions", {"messages": HELLO, "response_format": {"type": "xml"}}, "response_format.type"),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("/v1/completions", {"prompt": "x", "best_of": 3}, "best_of"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": [1.5]}, "prompt"),
        ("/v1/completions", {"prompt": "x", "stop": [""]}, "stop"),
        ("/v1/completions", {"prompt": "x", "stop": "y" * 5000, "stream": True}, "stop"),
        ("/v1/completions", {"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias"),
        ("/v1/completions", {"prompt": "x", "temperature": -1}, "temperature"),
        ("/v1/responses", {"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ("/v1/responses", {"input": "x", "conversation": "conv_1"}, "conversation"),
        ("/v1/responses", {"input": "x", "reasoning": {"effort": [1]}}, "reasoning.effort"),
        ("/v1/chat/completions", {"messages": HELLO, "reasoning_effort": "extreme"}, "reasoning_effort"),
        ("/v1/responses", {"input": [{"type": "computer_call"}]}, "input[0]"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(demo, path, body, field):
    error = demo.post(path, body, status=400)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    assert error["message"].startswith(field)


def test_minus_one_is_what_it_is_to_llama_cpps_clients(demo):
    body = {"prompt": "The package", "temperature": 0, "logit_bias": {"5": -100}}
    plain = demo.post("/v1/completions", {**body, "max_tokens": None, "top_k": 0})
    minus = demo.post("/v1/completions", {**body, "max_tokens": -1, "top_k": -1, "seed": -1})
    assert minus["choices"][0]["text"] == plain["choices"][0]["text"]
    drawn = {**body, "temperature": 5, "max_tokens": 12}
    texts = {demo.post("/v1/completions", {**drawn, "seed": -1})["choices"][0]["text"] for _ in range(4)}
    assert len(texts) > 1


def test_seeds_have_a_sign(demo):
    body = {"prompt": "The package", "temperature": 5, "max_tokens": 12}
    first, again, other = (
        demo.post("/v1/completions", {**body, "seed": seed})["choices"][0]["text"] for seed in (-(2**63), -(2**63), -2)
    )
    assert first == again != other
    demo.post("/v1/completions", {**body, "seed": -(2**63) - 1}, status=400)


def test_fields_that_say_nothing_are_no_error(demo):
    body = {"messages": HELLO, "max_tokens": 1}
    silent = {
        "logprobs": False, "top_logprobs": 0, "tools": [], "tool_choice": "auto", "stop": [], "response_format": None,
        "temperature": None, "n": None, "stream_options": None, "user": "me", "keep_alive": "5m", "options": {"num_ctx": 5}, "grammar": "",
    }  # fmt: skip
    assert demo.post("/v1/chat/completions", {**body, **silent})["choices"][0]["logprobs"] is None


def test_a_tool_without_parameters_takes_any(with_template):
    tools = [{"type": "function", "function": {"name": "now", "description": None, "parameters": None}}]
    body = {"messages": HELLO, "tools": tools, "max_tokens": 1}
    assert with_template("Qwen-Qwen3-0.6B").post("/v1/chat/completions", body)["choices"]
    assert with_template("Qwen-Qwen3-0.6B").post("/v1/chat/completions", {**body, "tool_choice": "required"})["choices"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/apply-template"])
@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "parse_content", "template", "tokenizer", "self"])  # fmt: skip
def test_a_variable_of_the_template_takes_the_place_of_nothing_else(demo, path, name):
    body = {"messages": HELLO, "chat_template_kwargs": {name: True, "enable_thinking": False}}
    error = demo.post(path, body, status=400)["error"]
    assert error["param"] == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize("ids", [[-1], [10**6], [2**63]])
def test_ids_that_are_none_of_the_models_are_refused(demo, ids):
    assert "ids go from 0" in demo.post("/v1/completions", {"prompt": ids}, status=400)["error"]["message"]


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(demo):
    error = demo.post("/v1/completions", {"prompt": [300] * 600}, status=400)["error"]
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 600, 512)
    last = demo.post("/v1/completions", {"prompt": [300] * 511, "max_tokens": 9})
    assert last["usage"]["completion_tokens"] == 1
    assert last["choices"][0]["finish_reason"] == "length"
