"""Answers that must follow a schema do, whatever the model would rather write; a schema that cannot be followed is refused by name."""

from __future__ import annotations

import json
import time

import jsonschema
import pytest

from server_models import random_engine
from serving_thread import serving

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", '"b"', "🦙", "\n"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def nested(depth: int) -> dict:
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    return schema


SOUND = {
    "person": PERSON,
    "empty": {"type": "object", "properties": {}, "additionalProperties": False},
    "far bound": {"type": "string", "maxLength": 65536, "pattern": "^[a-z]{1,8}$"},
    "pattern in items": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,5}$"}, "maxItems": 2},
    "one of": {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"const": 7}]},
    "reference": {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}},
    "nested": nested(12),
}
UNSOUND = [
    ({"type": "array", "items": {"type": "string", "not": {"const": "x"}}}, "$.items", "not"),
    ({"type": "object", "properties": {"a": {"uniqueItems": True, "type": "array"}}}, "$.properties.a", "uniqueItems"),
    ({"if": {"type": "string"}, "then": {}}, "$", "if"),
    ({"$defs": {"x": {"contains": {}}}, "$ref": "#/$defs/x"}, "$.$defs.x", "contains"),
]


@pytest.fixture(scope="module")
def random():
    """A model that writes anything at all."""
    engine = random_engine(n_ctx=512)
    with serving(lambda _progress: engine, n_parallel=4) as client:
        yield client


def asked(schema, **more):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"messages": [{"role": "user", "content": "x"}], "response_format": form, "max_tokens": 400, **more}


@pytest.mark.parametrize("name", SOUND)
def test_whatever_the_model_writes_is_of_the_schema(random, name):
    got = random.post("/v1/chat/completions", asked(SOUND[name], n=3, seed=5))
    for choice in got["choices"]:
        assert choice["finish_reason"] == "stop", choice
        jsonschema.validate(json.loads(choice["message"]["content"]), SOUND[name])


def test_a_real_model_follows_too_and_the_same_streamed(demo):
    body = asked(PERSON, temperature=0, max_tokens=200)
    whole = demo.post("/v1/chat/completions", body)["choices"][0]
    chunks = demo.events("/v1/chat/completions", body)
    text = "".join(c["choices"][0]["delta"].get("content") or "" for _, c in chunks if c["choices"])
    assert text == whole["message"]["content"]
    if whole["finish_reason"] == "stop":
        jsonschema.validate(json.loads(text), PERSON)


def test_any_object_is_one(random):
    body = {**asked({}), "response_format": {"type": "json_object"}, "max_tokens": 30}
    got = random.post("/v1/chat/completions", body)["choices"][0]
    assert got["message"]["content"].lstrip().startswith("{")


def test_a_response_takes_a_format(random):
    form = {"type": "json_schema", "name": "x", "schema": PERSON}
    got = random.post("/v1/responses", {"input": "x", "text": {"format": form}, "max_output_tokens": 300})
    assert got["status"] == "completed"
    jsonschema.validate(json.loads(got["output"][0]["content"][0]["text"]), PERSON)


@pytest.mark.parametrize("place", ["output_format", "output_config"])
def test_anthropics_messages_take_a_format(random, place):
    form = {"type": "json_schema", "schema": PERSON}
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 400}
    body[place] = {"format": form} if place == "output_config" else form
    got = random.post("/v1/messages", body)
    assert got["stop_reason"] == "end_turn"
    jsonschema.validate(json.loads(got["content"][0]["text"]), PERSON)
    events = random.events("/v1/messages", {**body, "temperature": 0})
    text = "".join(e["delta"].get("text", "") for name, e in events if name == "content_block_delta")
    jsonschema.validate(json.loads(text), PERSON)


def test_a_completion_takes_a_format(random):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": PERSON}}
    got = random.post("/v1/completions", {"prompt": ["x", "y"], "response_format": form, "max_tokens": 400})
    for choice in got["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["text"]), PERSON)


WRONG = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


@pytest.mark.parametrize(
    ("path", "more", "field"),
    [
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "schema": WRONG}}}, "text.format.schema"),
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ("/v1/responses", {"input": "x", "text": {"format": "json"}}, "text.format.type"),
        ("/v1/completions", {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": WRONG}}}, "response_format.json_schema.schema"),
        ("/v1/completions", {"prompt": "x", "response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "schema": WRONG}}, "response_format.schema"),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": WRONG}}, "max_tokens": 1}, "output_config.format.schema"),
        ("/v1/messages", {"output_format": {"type": "xml"}, "max_tokens": 1}, "output_format.type"),
    ],
)  # fmt: skip
def test_a_format_that_cannot_be_followed_is_refused_by_the_name_of_its_field(random, path, more, field):
    chat = {"messages": [{"role": "user", "content": "x"}]}
    message = random.post(path, {**chat, **more}, status=400)["error"]["message"]
    assert message.startswith(f"{field}: ")
    if "uniqueItems" in str(more):
        assert "at $.properties.a the keyword 'uniqueItems'" in message


def test_a_tool_whose_schema_cannot_be_followed_is_named_with_the_path_in_it(random):
    tools = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in (("f", PERSON), ("g", WRONG))]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": "required"}
    message = random.post("/v1/chat/completions", body, status=400)["error"]["message"]
    assert message.startswith("tools[1]: at $.properties.a the keyword 'uniqueItems'")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("name", ["grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "structured_outputs", "functions"])  # fmt: skip
def test_other_servers_ways_to_constrain_an_answer_are_not_passed_over(random, path, name):
    body = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "max_tokens": 1}
    assert random.post(path, {**body, name: "x"}, status=400)["error"]["param"] == name
    assert random.post(path, {**body, name: None})["choices"]


@pytest.mark.parametrize(("schema", "path", "keyword"), UNSOUND)
def test_an_unsupported_schema_is_refused_by_place_and_keyword(random, schema, path, keyword):
    error = random.post("/v1/chat/completions", asked(schema), status=400)["error"]
    assert error["param"] == "response_format.json_schema.schema"
    assert f"at {path} the keyword '{keyword}'" in error["message"]


@pytest.mark.parametrize(
    ("part", "keyword", "reason"),
    [
        ({"type": "string", "pattern": "(["}, "pattern", "unclosed"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern", "look-around"),
        ({"type": "string", "pattern": "^\\bx$"}, "pattern", "lookarounds"),
        ({"type": "string", "pattern": 5}, "pattern", "string"),
        ({"type": "string", "format": "no-such-format"}, "format", "no-such-format"),
    ],
    ids=str,
)
def test_a_pattern_that_is_none_is_named_with_its_place(random, part, keyword, reason):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "a"}, "b": {"type": "array", "items": part}},
    }
    message = random.post("/v1/chat/completions", asked(schema), status=400)["error"]["message"]
    assert f"at $.properties.b.items the keyword '{keyword}' cannot be followed: " in message
    assert reason in message


@pytest.mark.parametrize("pattern", ["^+[a-z]$", "^{2}[a-z]$"])
def test_anchors_that_are_repeated_do_not_free_the_answer(random, pattern):
    got = random.post("/v1/chat/completions", asked({"type": "string", "pattern": pattern}, n=3, seed=5))
    for choice in got["choices"]:
        text = json.loads(choice["message"]["content"])
        assert len(text) == 1
        assert "a" <= text <= "z"


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_shows_to_be_too_much_while_it_is_followed_is_a_400_that_says_so(random, stream):
    many = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}
    body = asked(many, stream=stream, seed=1)
    status, _, answer = random.request(
        "POST", "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    assert status == (200 if stream else 400)  # it began well
    last = answer.decode().strip().split("\n\n")[-1].removeprefix("data: ")
    error = json.loads(last)["error"]
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith("the schema cannot be followed any further: ")
    assert random.get("/health")["status"] == "ok"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"type": "integer", "minimum": 5, "maximum": 2},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/none"},
        {"type": "string", "pattern": "(["},
        {"type": "string", "format": "no-such-format"},
        False,
        [],
        "x",
        nested(60),
    ],
)
def test_a_schema_that_nothing_can_follow_is_an_error_within_two_seconds_and_the_server_lives(random, schema):
    began = time.monotonic()
    error = random.post("/v1/chat/completions", asked(schema), status=400)["error"]
    assert time.monotonic() - began < 2
    assert error["message"]
    assert random.get("/health")["status"] == "ok"
