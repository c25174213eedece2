"""What no client may do: get in without a key, read what is others', send what is too much, or bring the server down."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotset.errors import InputError
from hotset.server.keys import VARIABLE, Keys, read_keys
from hotset.server.limits import MAX_BODY, is_local
from hotset.server.strict_json import MAX_DEPTH
from scripted import scripted_engine
from serving_thread import serving

KEY = "a-secret-key-of-tests"
JSON = {"Content-Type": "application/json"}
PATHS = (
    "/", "//", "/health/", "/v1/models", "/v1/models/demo", "/props", "/slots", "/metrics", "/v1/experts", "/openapi.json", "/none",
    "/v1/chat/completions", "//v1/models", "/v1/models/", "/%2e%2e/health", "/health?x", "/healthx", "/./health",
)  # fmt: skip
ODD = [-1, 0, 1, 2**31, 2**63, 10**400, 1e308, -1e308, 0.5, "7", "", True, None, [], {}, [1], "NaN"]


@pytest.fixture(scope="module")
def locked():
    with serving(lambda _progress: scripted_engine(), keys=(KEY,)) as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD", "PUT", "DELETE"])
def test_without_a_key_nothing_is_answered_but_health(locked, method, path):
    status, headers, body = locked.request(method, path)
    assert status == (401 if path != "/health?x" or method != "GET" else 200) or path == "/health?x"
    if status == 401:
        assert headers["www-authenticate"] == 'Basic realm="hotset", Bearer realm="hotset"'
        assert method == "HEAD" or "key" in json.loads(body).get("error", {})["message"]


def test_health_needs_no_key_and_tells_nothing(locked):
    assert locked.get("/health") == {"status": "ok", "restarts": 0}


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY} "},
        {"x-api-key": KEY},
        {"Authorization": "Basic " + base64.b64encode(f"me:{KEY}".encode()).decode()},
    ],
)
def test_a_key_opens(locked, headers):
    assert locked.request("GET", "/v1/models", headers=headers)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": KEY},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic /w=="},
        {"x-api-key": "é"},
        {"Cookie": f"key={KEY}"},
    ],
)
def test_another_key_does_not(locked, headers):
    connection = http.client.HTTPConnection("127.0.0.1", locked.port)
    connection.putrequest("GET", "/v1/models")
    for name, value in headers.items():
        connection.putheader(name, value.encode())
    connection.endheaders()
    assert connection.getresponse().status == 401


def test_the_key_shows_nowhere(locked, caplog):
    with caplog.at_level(logging.DEBUG):
        for path in ("/props", "/metrics", "/slots", "/openapi.json", "/v1/experts", "/none"):
            for headers in ({"x-api-key": KEY}, {"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY + "x"}):
                assert KEY not in str(locked.request("GET", path, headers=headers))
    assert KEY not in caplog.text
    assert KEY not in repr(Keys([KEY]))


def test_keys_come_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not read_keys(None)
    monkeypatch.setenv(VARIABLE, KEY)
    assert read_keys(None).accept([KEY])
    monkeypatch.setenv(VARIABLE, f" {KEY}\n")
    assert read_keys(None).accept([KEY])
    file = tmp_path / "keys"
    file.write_text(f"\n  {KEY}-1 \n{KEY}-2\n")
    keys = read_keys(str(file))
    assert keys.accept([f"{KEY}-1"])
    assert keys.accept(["no", f"{KEY}-2"])
    assert not keys.accept([KEY])


@pytest.mark.parametrize("value", ["   \n", "sh0rt", "two words of it", "schlüssel-für-alle", "a\x00b-of-keys"])
def test_a_key_that_no_client_could_send_is_refused_without_showing_it(monkeypatch, value):
    monkeypatch.setattr(os, "environ", {VARIABLE: value})
    with pytest.raises(InputError) as error:
        read_keys(None)
    assert value not in str(error.value)


@pytest.mark.parametrize("text", ["", "\n \n", "short", None])
def test_a_key_file_that_holds_none_is_refused_without_showing_it(tmp_path, text):
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError) as error:
        read_keys(str(file))
    assert "short " not in str(error.value)


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "127.8.8.8", "LOCALHOST"])
def test_names_of_this_machine(host):
    assert is_local(host)


@pytest.mark.parametrize("host", ["", "evil.example", "127.0.0.1.evil.example", "192.168.0.1", "localhost.evil:80", "[::2]", "0.0.0.0"])  # noqa: S104  # fmt: skip
def test_names_of_others(host):
    assert not is_local(host)


def test_a_page_whose_name_was_made_to_point_here_is_refused(demo):
    status, _, body = demo.request("GET", "/v1/models", headers={"Host": "evil.example"})
    assert status == 403
    assert "Host" in json.loads(body)["error"]["message"]
    assert "API key" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
def test_only_json_is_read_so_that_no_page_of_another_origin_can_post(demo, kind):
    status, headers, _ = demo.request("POST", "/v1/completions", b'{"prompt": "x"}', {"Content-Type": kind})
    assert status == 415
    assert "access-control-allow-origin" not in headers


def test_every_answer_has_the_headers_that_keep_browsers_strict(demo):
    for method, path in (("GET", "/"), ("GET", "/health"), ("POST", "/v1/completions"), ("GET", "/none")):
        headers = demo.request(method, path)[1]
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "body"),
        ("{", "no JSON"),
        ("null", "body"),
        ('"x"', "body"),
        ("[]", "body"),
        ('{"messages": NaN}', "NaN"),
        ('{"messages": [], "temperature": Infinity}', "Infinity"),
        ('{"temperature": 1e999}', "too large"),
        ('{"max_tokens": ' + "9" * 5000 + "}", "no JSON"),
        ("[" * 100_000, "nests"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "deep"),
        ("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), "deeper"),
        ('{"messages": "\\ud800"}', "messages"),
    ],
)
def test_a_body_that_is_none_is_a_400(demo, text, said):
    error = demo.post("/v1/chat/completions", None, text=text, status=400)["error"]
    assert said in error["message"]
    assert len(error["message"]) < 400


def test_text_that_is_no_unicode_is_a_400(demo):
    for body in (b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b'{"prompt": ["\\udfff x"]}'):
        status, _, answer = demo.request("POST", "/v1/completions", body, JSON)
        assert status == 400, answer


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/apply-template", {"messages": [{"role": "user", "content": "a\ud800"}]}, "messages[0].content"),
        ("/v1/responses", {"input": "x", "max_output_tokens": 1, "metadata": {"a": "\udfff"}}, "metadata.a"),
        ("/v1/responses", {"input": "x", "metadata": {"\ud83d": "a"}, "stream": True}, "metadata"),
        ("/v1/chat/completions", {"messages": [], "stop": ["b", "\ud83d"]}, "stop[1]"),
        ("/v1/messages", {"max_tokens": "\ud800"}, "max_tokens"),
        ("/tokenize", "\ud800", "body"),
    ],
)
def test_half_a_character_is_refused_wherever_it_stands(demo, path, body, place):
    error = demo.post(path, body, status=400)["error"]
    assert error["message"].startswith(f"{place}: holds a lone surrogate")


def test_a_character_in_two_halves_is_one(demo):
    body = '{"content": "\\ud83d\\ude00", "parse_special": false}'
    assert demo.post("/tokenize", None, text=body) == demo.post("/tokenize", {"content": "😀"})


def test_a_body_that_is_too_large_is_refused_declared_or_not(demo):
    status, _, body = demo.request("POST", "/v1/completions", headers={**JSON, "Content-Length": str(MAX_BODY + 1)})
    assert (status, json.loads(body)["error"]["type"]) == (413, "request_too_large")
    connection = http.client.HTTPConnection("127.0.0.1", demo.port)
    part = b"x" * (1 << 20)
    try:
        connection.request(
            "POST", "/v1/completions", (part for _ in range((MAX_BODY >> 20) + 1)), JSON, encode_chunked=True
        )
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):  # it was closed before all was sent
        pass
    assert demo.get("/health")["status"] == "ok"


def numeric_fields(client) -> list[tuple[str, str]]:
    """Every field of every body that takes a number, by the server's own description."""
    schema = client.get("/openapi.json")
    found = []
    for path, methods in schema["paths"].items():
        for what in methods.values():
            content = what.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            if name := content.get("$ref", "").rpartition("/")[2]:
                for field, kind in schema["components"]["schemas"][name]["properties"].items():
                    kinds = [kind, *kind.get("anyOf", [])]
                    if any(k.get("type") in ("number", "integer") for k in kinds):
                        found.append((path, field))
    return found


REQUIRED = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
}


def test_odd_numbers_in_every_numeric_field_are_answered_or_refused_by_name(scripted):
    fields = numeric_fields(scripted)
    assert len(fields) > 30
    for path, field in fields:
        for value in ODD:
            text = json.dumps({**REQUIRED[path], field: value})
            status, _, body = scripted.request("POST", path, text.encode(), JSON)
            assert status in (200, 400), (path, field, value, body)
            if status == 400:
                assert field in json.loads(body)["error"]["message"], (path, field, value, body)
            if isinstance(value, (str, bool, list, dict)):
                assert status == 400, (path, field, value)
    assert scripted.get("/health")["status"] == "ok"


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def test_whatever_a_described_field_holds_is_answered_or_refused_in_json(scripted):
    schema = scripted.get("/openapi.json")
    posts = []
    for path, methods in schema["paths"].items():
        ref = (
            methods.get("post", {})
            .get("requestBody", {})
            .get("content", {})
            .get("application/json", {})
            .get("schema", {})
        )
        if "$ref" in ref:
            properties = schema["components"]["schemas"][ref["$ref"].rpartition("/")[2]]["properties"]
            posts.append((path, sorted(properties)))
    assert len(posts) >= 9

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def holds(data):
        path, fields = data.draw(st.sampled_from(posts))
        body = {**REQUIRED.get(path, {}), **data.draw(st.dictionaries(st.sampled_from(fields), JSONISH, max_size=3))}
        body.pop("stream", None)
        status, _, answer = scripted.request("POST", path, json.dumps(body).encode("utf-8", "surrogatepass"), JSON)
        assert status in (200, 400), (path, body, answer)
        json.loads(answer)

    holds()
    assert scripted.get("/health")["status"] == "ok"


@pytest.mark.parametrize("path", ["/../pyproject.toml", "/..%2fapp.py", "/%2e%2e/app.py", "/page/../app.py", "/\x00", "/a\\..\\app.py", "//etc/passwd", "/" + "a" * 3000])  # fmt: skip
def test_no_path_leads_out_of_the_page(demo, path):
    connection = http.client.HTTPConnection("127.0.0.1", demo.port)
    connection.putrequest("GET", path.replace("\x00", "%00"), skip_accept_encoding=True)
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status in (400, 404, 405)
    assert b"import" not in answer.read()


def test_errors_hold_no_path_and_no_traceback(demo):
    for method, path in (
        ("GET", "/none"),
        ("DELETE", "/v1/models"),
        ("GET", "/v1/models/other"),
        ("GET", "/v1/experts?since=-1"),
    ):
        status, _, body = demo.request(method, path)
        assert 400 <= status < 500
        assert set(json.loads(body)) == {"error"}
        assert b"Traceback" not in body
        assert b".py" not in body
