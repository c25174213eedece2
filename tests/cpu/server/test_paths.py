"""Paths as clients write them: with slashes too many, by HEAD, by the wrong method, or to nothing."""

from __future__ import annotations

import json

import pytest

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "//v1/chat/completions", "/v1//chat/completions"])
def test_slashes_too_many_count_for_nothing(demo, path):
    assert demo.post(path, CHAT)["object"] == "chat.completion"


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/v1/models/demo", "/props", "/metrics", "/style.css"])
def test_head_tells_what_get_does_without_the_body(demo, path):
    status, headers, body = demo.request("HEAD", path)
    assert (status, body) == (200, b"")
    assert headers["content-type"] == demo.request("GET", path)[1]["content-type"]


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/chat/completions"), ("POST", "/v1/models"), ("OPTIONS", "/v1/messages"), ("DELETE", "/")])  # fmt: skip
def test_another_method_is_refused_with_those_that_there_are(demo, method, path):
    status, headers, body = demo.request(method, path)
    assert status == 405
    assert headers["allow"].split(", ")[0] in ("GET", "POST", "HEAD")
    assert method in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", ["/chat/completions", "/v1/embeddings", "/api/chat", "/none.css", "/v1"])
def test_where_there_is_nothing_the_answer_says_where_to_look(demo, method, path):
    status, _, body = demo.request(method, path, b"{}", JSON)
    assert status == 404
    assert "/v1" in json.loads(body)["error"]["message"]
