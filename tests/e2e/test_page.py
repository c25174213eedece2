"""The page at / in a real browser: chat, stop, settings, the expert map, the slider, the key, on a wide screen and a phone."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import threading
import time
from contextlib import contextmanager

import pytest

import hotset
from serving_thread import serving, until

playwright = pytest.importorskip("playwright.sync_api", reason="PLAYWRIGHT ABSENT: the page was not tested")
expect = playwright.expect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="CHROMIUM ABSENT: the page was not tested; apt-get install chromium"
)

MAX_BYTES = 200_000
FIRST_PAINT_MS = 500
WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
KEY = "a-key-that-nobody-else-has"
# Slow enough that whoever watches sees it happen.
STEP_S = 0.03


def demo_engine(_progress=None):
    return hotset.load("demo", device="cpu", n_ctx=1024, threads=1, n_parallel=2, record_steps=128, expert_cache="25%")


@pytest.fixture(scope="module")
def demo():
    with serving(demo_engine, n_parallel=2) as client:
        client.post("/v1/completions", {"prompt": "The", "max_tokens": 2})  # compiles
        yield client


@pytest.fixture(scope="module")
def slow():
    """A server that takes its time with every step."""
    with serving(demo_engine, n_parallel=2) as client:
        sequences = client.scheduler._sequences
        step = sequences.step

        def slow_step(seqs):
            time.sleep(STEP_S)
            return step(seqs)

        sequences.step = slow_step
        yield client


@pytest.fixture(scope="module")
def without_template():
    def load(_progress):
        engine = demo_engine()
        engine.template = None
        return engine

    with serving(load, n_parallel=2) as client:
        yield client


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM)
        yield found
        found.close()


@pytest.fixture
def visit(browser):
    """Open the page of a server and wait until it can be used; at the end nothing may stand in the browser's console."""
    contexts, complaints = [], []

    def open_page(client, *, wait=True, before=lambda _page: None, **options):
        context = browser.new_context(**{"viewport": WIDE, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        before(page)
        page.goto(client.url)
        if wait:
            expect(page.get_by_role("textbox", name=re.compile("Message|Text to continue"))).to_be_enabled()
            expect(page.locator("#status")).to_have_text("ready")
        return page

    open_page.complaints = complaints
    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def ask(page, text: str, **settings) -> None:
    """Fill in the settings and send a text."""
    page.locator("#settings-box").evaluate("box => box.open = true")
    for name, value in settings.items():
        page.locator(f"#settings [name={name}]").fill(str(value))
    page.locator("#settings-box").evaluate("box => box.open = false")
    page.locator("#input").fill(text)
    page.locator("#input").press("Enter")


def finished(page):
    """The last answer, once it is complete."""
    expect(page.get_by_role("button", name="Regenerate")).to_be_visible(timeout=60_000)
    return page.locator("article").last


def choose_text_mode(page) -> None:
    page.locator("#settings-box").evaluate("box => box.open = true")
    page.get_by_label("Continue a text").check()


@contextmanager
def answered(page, *deltas, path="**/v1/chat/completions"):
    """In place of the server, answer with these deltas; gives the requests."""
    requests = []

    def answer(route):
        requests.append(route.request.post_data_json)
        chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        route.fulfill(headers={"Content-Type": "text/event-stream"}, body=body + "data: [DONE]\n\n")

    page.route(path, answer)
    yield requests
    page.unroute(path)


def test_it_is_small_fast_strict_and_whole(demo, visit):
    sizes, headers = [], []

    def listen(page):
        page.on("response", lambda response: (sizes.append(len(response.body())), headers.append(response.headers)))

    page = visit(demo, before=listen)
    assert sum(sizes) < MAX_BYTES
    for one in headers:
        policy = one["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    hosts = page.evaluate("performance.getEntriesByType('resource').map(one => new URL(one.name).origin)")
    assert set(hosts) == {demo.url}
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    times = []
    for _ in range(5):  # the fastest: what else the machine does is not the page's doing
        page.reload()
        expect(page.locator("#status")).to_have_text("ready")
        times.append(page.evaluate(paint))
    assert min(times) < FIRST_PAINT_MS


def test_a_text_is_continued_as_by_the_api(demo, visit):
    page = visit(demo)
    choose_text_mode(page)
    ask(page, "The package", temperature=0, max_tokens=24)
    found = finished(page)
    told = demo.post("/v1/completions", {"prompt": "The package", "temperature": 0, "max_tokens": 24})
    assert found.locator(".answer").text_content() == told["choices"][0]["text"]
    assert re.search(r"24 tokens, [\d.]+ tok/s", found.inner_text())
    assert "limit of tokens" in found.inner_text()
    page.get_by_role("button", name="Go on").click()
    finished(page)
    whole = demo.post(
        "/v1/completions", {"prompt": "The package" + told["choices"][0]["text"], "temperature": 0, "max_tokens": 24}
    )
    assert found.locator(".answer").text_content() == told["choices"][0]["text"] + whole["choices"][0]["text"]


def test_a_chat_streams_and_says_its_speed(slow, visit):
    page = visit(slow)
    ask(page, "What is a package?", max_tokens=40, temperature=0)
    answer = page.locator("article .answer")
    expect(answer).not_to_be_empty()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.locator("article .hint")).to_have_text(re.compile(r"^[\d.]+ tok/s$"))
    assert page.locator("article").get_attribute("aria-busy") == "true"
    early = answer.inner_text()
    assert "tok/s" in finished(page).inner_text()
    assert len(answer.inner_text()) > len(early)
    assert page.locator("article").get_attribute("aria-busy") is None
    expect(page.locator("#status")).to_have_text("answer complete")


def test_settings_and_history_are_sent(demo, visit):
    page = visit(demo)
    with answered(page, {"reasoning_content": "thought"}, {"content": "first"}) as sent:
        ask(page, "one", system="Be brief.", temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, seed=3, max_tokens=5)
        finished(page)
        expect(page.get_by_text("Reasoning")).to_be_visible()
        ask(page, "two", system="Be long.")
        finished(page)
        page.get_by_role("button", name="Regenerate").click()
        until(lambda: len(sent) == 3 or page.wait_for_timeout(10))
        finished(page)
    sampling = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "seed": 3, "max_tokens": 5}
    assert sampling.items() <= sent[0].items()
    assert sent[0]["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
    assert sent[1]["messages"] == [
        {"role": "system", "content": "Be long."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "two"},
    ]
    assert sent[2] == sent[1]
    assert page.locator("article").count() == 2
    page.reload()
    expect(page.locator("#settings [name=top_k]")).to_have_value("7")


def test_settings_that_are_none_are_not_sent(demo, visit):
    page = visit(demo)
    ask(page, "one", top_p=2)
    assert page.locator("article").count() == 0
    assert page.locator("#settings-box").evaluate("box => box.open")


@pytest.mark.parametrize("how", ["click", "Escape"])
def test_stop_ends_the_work_and_keeps_what_there_is(slow, visit, how):
    page = visit(slow)
    ask(page, "What is a package?", temperature=0)
    expect(page.locator("article .answer")).not_to_be_empty()
    if how == "click":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press(how)
    assert "stopped" in finished(page).inner_text()
    until(lambda: not any(slot["is_processing"] for slot in slow.get("/slots")))
    expect(page.locator("#input")).to_be_focused()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    kept = page.locator("article .answer").inner_text()
    assert kept
    page.get_by_role("button", name="New", exact=True).click()
    assert page.locator("article").count() == 0


def test_a_new_conversation_stops_the_old_one(slow, visit):
    page = visit(slow)
    ask(page, "What is a package?", temperature=0)
    expect(page.locator("article .answer")).not_to_be_empty()
    page.get_by_role("button", name="New", exact=True).click()
    until(lambda: not any(slot["is_processing"] for slot in slow.get("/slots")))
    ask(page, "Again", max_tokens=3)
    finished(page)
    assert page.locator("article").count() == 1


def test_a_refusal_is_shown_in_the_servers_words(demo, visit):
    page = visit(demo)
    ask(page, "word " * 3000)
    expect(page.locator("article [role=alert]")).to_contain_text("context")
    with answered(page, {"content": "now"}) as sent:
        ask(page, "shorter")
        until(lambda: sent or page.wait_for_timeout(10))
        finished(page)
    assert sent[0]["messages"] == [{"role": "user", "content": "shorter"}]
    visit.complaints[:] = [text for text in visit.complaints if "400" not in text]


def test_without_a_chat_template_it_says_so_and_continues(without_template, visit):
    page = visit(without_template)
    expect(page.locator("#no-template")).to_be_visible()
    assert page.get_by_label("Chat", exact=True).is_disabled()
    ask(page, "The package", temperature=0, max_tokens=8)
    told = without_template.post("/v1/completions", {"prompt": "The package", "temperature": 0, "max_tokens": 8})
    assert finished(page).locator(".answer").text_content() == told["choices"][0]["text"]


def test_answers_never_become_html(demo, visit):
    asked_for = []
    page = visit(demo, before=lambda page: page.on("request", lambda request: asked_for.append(request.url)))
    hostile = (
        "<script>alert(1)</script><img src=x onerror=alert(2)>\n\n<svg onload=alert(3)>\n\n![i](http://evil.example/x.png)\n\n"
        "[a](javascript:alert(4)) [b](data:text/html,x) [c](JaVaScRiPt:alert(5)) <javascript:alert(6)> [d](//evil.example)\n\n"
        '[e](https://good.example/"onmouseover="alert(7)) `<b>`\n\n```html"><script>alert(8)</script>\n<i>\n```\n| <u> |\n|---|\n| <s> |\n'
    )
    with answered(page, {"reasoning_content": "<b>deep</b>"}, *({"content": piece} for piece in hostile)):
        ask(page, "<b>bold</b>")
        found = finished(page)
    tags = found.evaluate("node => [...new Set([...node.querySelectorAll('*')].map(one => one.tagName))]")
    assert not {"SCRIPT", "IMG", "SVG", "svg", "B", "I", "U", "S", "IFRAME"} & set(tags)
    attributes = found.evaluate("node => [...node.querySelectorAll('*')].flatMap(one => one.getAttributeNames())")
    assert not [name for name in attributes if name.startswith("on") or name in ("style", "src", "srcdoc")]
    links = found.evaluate("node => [...node.querySelectorAll('a')].map(one => [one.protocol, one.rel])")
    assert links
    assert all(link in (["https:", "noopener noreferrer"], ["http:", "noopener noreferrer"]) for link in links)
    assert not [url for url in asked_for if not url.startswith(demo.url)]
    for text in ("<script>alert(1)</script>", "onerror=alert(2)", "[a](javascript:alert(4))", "<b>bold</b>", "<i>"):
        assert text in found.inner_text()


def test_the_map_moves_while_it_generates(slow, visit):
    asked_for = []
    page = visit(slow, before=lambda page: page.on("request", lambda r: asked_for.append((time.monotonic(), r.url))))
    picture = "document.getElementById('map').toDataURL()"
    still = page.evaluate(picture)
    page.wait_for_timeout(600)
    assert page.evaluate(picture) == still
    n_idle = len([url for _, url in asked_for if "/v1/experts" in url])
    assert n_idle == 1
    ask(page, "What is a package?", max_tokens=100, temperature=0)
    expect(page.locator("article .answer")).not_to_be_empty()
    seen = {page.evaluate(picture) for _ in range(10) if page.wait_for_timeout(200) is None}
    assert len(seen) >= 4
    finished(page)
    begin = next(at for at, url in asked_for if "chat" in url)
    polls = [at for at, url in asked_for if "/v1/experts" in url and at > begin]
    gaps = sorted(after - before for before, after in itertools.pairwise(polls))
    assert gaps[len(gaps) // 2] <= 0.25  # four a second
    page.wait_for_timeout(700)
    n = len(asked_for)
    page.wait_for_timeout(700)
    assert len(asked_for) == n
    facts = slow.get("/v1/experts")
    assert page.locator("#hits").inner_text() == f"{facts['hits']:,}"
    assert "percent" in page.locator("#plot").get_attribute("aria-label")


def test_the_map_can_be_read_with_the_keyboard_and_as_a_table(demo, visit):
    demo.post("/v1/completions", {"prompt": "The package", "max_tokens": 20, "temperature": 0})
    facts = demo.get("/v1/experts")
    page = visit(demo)
    canvas = page.locator("#map")
    assert f"{facts['n_layers']} layers of {facts['n_experts']} experts" in canvas.get_attribute("aria-label")
    canvas.focus()
    for key, layer, expert in (("ArrowDown", 0, 0), ("ArrowDown", 1, 0), ("ArrowRight", 1, 1), ("ArrowUp", 0, 1), ("ArrowLeft", 0, 0), ("ArrowLeft", 0, 0)):  # fmt: skip
        canvas.press(key)
        where = "resident" if expert in facts["layers"][layer]["resident"] else "not resident"
        heat = facts["layers"][layer]["heat"][expert]
        expect(page.locator("#map-cell")).to_have_text(f"Layer {layer}, expert {expert}: {where}, heat {heat} %")
    page.get_by_text("The map as a table").click()
    rows = page.locator("#table tr")
    expect(rows).to_have_count(facts["n_layers"])
    for i, layer in enumerate(facts["layers"]):
        cells = rows.nth(i).locator("td").all_inner_texts()
        assert cells[:3] == [str(layer["n_slots"]), f"{layer['hits']:,}", f"{layer['misses']:,}"]
        assert cells[4] == " ".join(map(str, layer["resident"]))


def test_the_slider_changes_the_cache_while_it_generates(slow, visit):
    page = visit(slow)
    ask(page, "What is a package?", max_tokens=200, temperature=0)
    expect(page.locator("article .answer")).not_to_be_empty()
    slider = page.get_by_role("slider", name="Cache size")
    n_layers, n_experts = (slow.get("/v1/experts")[name] for name in ("n_layers", "n_experts"))
    for key, n in (("End", n_experts), ("Home", 0), ("ArrowRight", 1)):
        slider.press(key)
        until(lambda n=n: slow.get("/v1/experts")["n_slots"] == n * n_layers)
        expect(page.locator("#cache-note")).to_contain_text(f"{n} of {n_experts} experts per layer")
        assert f"{n} of" in slider.get_attribute("aria-valuetext")
    finished(page)
    assert page.locator("article [role=alert]").is_hidden()


def test_a_size_that_does_not_fit_is_said_and_the_slider_goes_back(demo, visit):
    page = visit(demo)
    slider = page.get_by_role("slider", name="Cache size")
    before = slider.input_value()
    refusal = {"error": {"message": "the expert cache asked for needs more"}}
    page.route("**/v1/experts/cache", lambda route: route.fulfill(status=400, json=refusal))
    slider.press("End")
    expect(page.locator("#cache-problem")).to_have_text("the expert cache asked for needs more")
    expect(slider).to_have_value(before)
    visit.complaints[:] = [text for text in visit.complaints if "400" not in text]


def test_memory_is_shown(demo, visit):
    page = visit(demo)
    for row in demo.get("/props")["memory"]:
        expect(page.locator("#memory li", has_text=row["name"]).first).to_contain_text(row["note"])


def test_on_a_phone_it_is_one_column(demo, visit):
    page = visit(demo, viewport=PHONE, is_mobile=True, has_touch=True)
    page.locator("#input").fill("What is a package?")
    page.get_by_role("button", name="Send").tap()
    finished(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    talk, experts = page.locator("#talk").bounding_box(), page.locator("#experts").bounding_box()
    assert experts["y"] >= talk["y"] + talk["height"] - 1
    assert talk["width"] == experts["width"] == PHONE["width"]
    composer = page.locator("#composer").bounding_box()
    assert composer["y"] + composer["height"] <= PHONE["height"] + 1
    page.locator("#memory li").last.scroll_into_view_if_needed()
    expect(page.locator("#memory li").last).to_be_in_viewport()


def contrast(one, other) -> float:
    """WCAG's contrast ratio of two colours (r, g, b)."""

    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in colour)]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_can_be_read(demo, visit, scheme):
    page = visit(demo, color_scheme=scheme)
    colour = "name => getComputedStyle(document.documentElement).getPropertyValue('--' + name)"

    def rgb(name):
        text = page.evaluate(colour, name)
        return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))

    for ground in ("ground", "panel", "soft"):
        for ink in ("ink", "dim", "accent", "bad"):
            assert contrast(rgb(ink), rgb(ground)) >= 4.5, (ink, ground)
    assert contrast(rgb("on-accent"), rgb("accent")) >= 4.5
    for mark in ("hot", "hit", "miss"):
        assert contrast(rgb(mark), rgb("panel")) >= 3, mark
    is_dark = contrast(rgb("ground"), (0, 0, 0)) < contrast(rgb("ground"), (255, 255, 255))
    assert is_dark == (scheme == "dark")


def test_everything_has_a_name_and_the_keyboard_reaches_it(demo, visit):
    page = visit(demo)
    nameless = """[...document.querySelectorAll('input, textarea, button, canvas, summary, progress, section, aside')].filter(one =>
        !one.labels?.length && !one.getAttribute('aria-label') && !one.getAttribute('aria-labelledby') && !one.textContent.trim()
    ).map(one => one.outerHTML)"""
    assert page.evaluate(nameless) == []
    page.locator("#settings-box").evaluate("box => box.open = true")
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.name"))
    assert {
        "mode",
        "system",
        "temperature",
        "max_tokens",
        "log",
        "input",
        "send",
        "clear",
        "map",
        "cache-size",
    } <= reached
    assert page.locator("[aria-live=polite]#log").count() == 1


def test_while_the_model_loads_the_page_shows_how_far_it_is(visit):
    go_on = threading.Event()

    def load(progress):
        progress("reading", 3, 10)
        assert go_on.wait(60)
        return demo_engine()

    with serving(load, n_parallel=2, wait=False) as client:
        page = visit(client, wait=False)
        expect(page.locator("#status")).to_have_text("loading: reading")
        assert page.locator("#loading").evaluate("bar => bar.value / bar.max") == 0.3
        assert page.locator("#input").is_disabled()
        go_on.set()
        expect(page.locator("#input")).to_be_enabled(timeout=60_000)
        expect(page.locator("#loading")).to_be_hidden()
    visit.complaints[:] = [text for text in visit.complaints if "503" not in text]


@pytest.fixture(scope="module")
def locked():
    with serving(demo_engine, n_parallel=2, keys=(KEY,)) as client:
        yield client


def test_the_browsers_own_question_for_a_password_takes_the_key(locked, visit):
    page = visit(locked, http_credentials={"username": "any", "password": KEY})
    ask(page, "Hello", max_tokens=3)
    assert "tok/s" in finished(page).inner_text()


def test_the_page_asks_for_the_key_and_forgets_it_with_the_tab(locked, visit):
    def give_the_page_alone(page):
        # The browser has the page, and what it was told for the rest is not, or no longer, the key.
        def fetch(route):
            is_api = re.search("/v1/|/props", route.request.url)
            route.continue_(headers=route.request.headers | ({} if is_api else {"x-api-key": KEY}))

        page.route("**/*", fetch)

    old = {"username": "any", "password": "an-old-key"}
    page = visit(locked, wait=False, before=give_the_page_alone, http_credentials=old)
    field = page.get_by_label("Key", exact=True)
    for key in ("wrong-key", KEY):
        expect(field).to_be_visible()
        field.fill(key)
        field.press("Enter")
    expect(page.locator("#input")).to_be_enabled()
    ask(page, "Hello", max_tokens=3)
    finished(page)
    assert page.evaluate("Object.values(sessionStorage)").count(KEY) == 1
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    assert KEY not in page.content()
    page.reload()
    expect(page.locator("#input")).to_be_enabled()
    assert not field.is_visible()
    visit.complaints[:] = [text for text in visit.complaints if "401" not in text]


RENDER = """async text => {
    const { Rendered } = await import("/markdown.js");
    const box = document.createElement("div");
    const rendered = new Rendered(box);
    rendered.show(text);
    return box.innerHTML;
}"""
LINK = 'rel="noopener noreferrer" target="_blank"'


@pytest.fixture(scope="module")
def plain_page(demo, browser):
    page = browser.new_page()
    page.goto(demo.url)
    yield page
    page.close()


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
        ("# A #\n### B\n###### C\n#D", "<h3>A</h3><h5>B</h5><h6>C</h6><p>#D</p>"),
        ("*a* **b** ***c*** _d_ __e__ ~~f~~", "<p><em>a</em> <strong>b</strong> <strong><em>c</em></strong> <em>d</em> <strong>e</strong> <del>f</del></p>"),
        ("**a *b***, *c **d***, 2 * 3 * 4, snake_case_name, a**", "<p><strong>a <em>b</em></strong>, <em>c <strong>d</strong></em>, 2 * 3 * 4, snake_case_name, a**</p>"),
        ("*open [too `far", "<p>*open [too `far</p>"),
        ("`a` ``b`c`` ` d", "<p><code>a</code> <code>b`c</code> ` d</p>"),
        (r"\*a\* \q `\`", r"<p>*a* \q <code>\</code></p>"),
        ("- a\n- b\n  - c\n\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"),
        ("3. a\n4. b\n\n   more", '<ol start="3"><li>a</li><li><p>b</p><p>more</p></li></ol>'),
        ("a\n- b\n---\n> c\n> d", "<p>a</p><ul><li>b</li></ul><hr><blockquote><p>c<br>d</p></blockquote>"),
        ("[a](https://x.example/y 'z') b", "<p>[a](https://x.example/y 'z') b</p>".replace("https://x.example/y", f'<a href="https://x.example/y" {LINK}>https://x.example/y</a>')),
        ('[*a*](https://x.example/y_(z) "t")', f'<p><a href="https://x.example/y_(z)" {LINK}><em>a</em></a></p>'),
        ("see https://x.example/y. <HTTP://z.example>", f'<p>see <a href="https://x.example/y" {LINK}>https://x.example/y</a>. <a href="http://z.example/" {LINK}>HTTP://z.example</a></p>'),
        ("[a](ftp://x) [b]() [c](mailto:x@y) [d](https://)", "<p>[a](ftp://x) [b]() [c](mailto:x@y) [d](https://)</p>"),
        ("|a|b|\n|-|:-:|\n|`1`|2|3|\nend", '<div class="table-scroll"><table><thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead><tbody><tr><td><code>1</code></td><td>2</td></tr></tbody></table></div><p>end</p>'),
        ("<b>x</b> &lt; &", "<p>&lt;b&gt;x&lt;/b&gt; &amp;lt; &amp;</p>"),
        ("", ""),
        (" \n\n \n", ""),
    ],
)  # fmt: skip
def test_markdown(plain_page, text, html):
    assert plain_page.evaluate(RENDER, text) == html


@pytest.mark.parametrize(
    ("text", "language", "code"),
    [
        ("```python\nx = 1\n\n  y\n```\nafter", "python", "x = 1\n\n  y"),
        ("~~~\n```\n~~~", "", "```"),
        ("````md\n```\n````", "md", "```"),
        ("```c\nunfinished <b>", "c", "unfinished <b>"),
        ("- item\n  ```sh\n  ls\n    x\n  ```", "sh", "ls\n  x"),
    ],
)
def test_fenced_code(plain_page, text, language, code):
    facts = """async text => {
        const { Rendered } = await import("/markdown.js");
        const box = document.createElement("div");
        new Rendered(box).show(text);
        return [box.querySelector(".code > span").textContent, box.querySelector("pre code").textContent];
    }"""
    assert plain_page.evaluate(facts, text) == [language, code]


def test_code_is_copied(demo, visit):
    page = visit(demo, permissions=["clipboard-read", "clipboard-write"])
    with answered(page, {"content": "```\nx < 1\n```"}):
        ask(page, "code")
        finished(page)
    page.get_by_role("button", name="Copy the code").click()
    expect(page.get_by_role("button", name="Copy the code")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "x < 1"


MIXED = (
    "# T\n\npara *one*\n\n- a\n- b\n\n```py\nx\n```\n\n| a |\n|---|\n| b |\n\n> q\n\nlast [l](https://x.example) `c`\n"
)


def test_a_growing_answer_ends_as_the_whole_one(plain_page):
    grown = """async text => {
        const { Rendered } = await import("/markdown.js");
        const box = document.createElement("div");
        const rendered = new Rendered(box);
        let kept = 0;
        for (let n = 0; n <= text.length; n += 1) {
            const first = box.firstChild;
            rendered.show(text.slice(0, n));
            kept += first !== null && first === box.firstChild;
        }
        return [box.innerHTML, kept];
    }"""
    html, kept = plain_page.evaluate(grown, MIXED)
    assert html == plain_page.evaluate(RENDER, MIXED)
    assert kept > len(MIXED) * 0.9


HOSTILE = {
    "stars": "*" * 200_000,
    "open emphasis": "*a " * 50_000,
    "open links": "[" * 100_000,
    "half links": "[a](" * 50_000,
    "backticks": "".join("`" * n + "a" for n in range(1, 400)),
    "quotes": "> " * 50_000,
    "deep lists": "".join("  " * n + "- a\n" for n in range(300)),
    "fences": "```\n" * 20_000,
    "table": "|" * 20_000 + "\n" + "|-" * 20_000,
    "addresses": "http://" * 30_000,
    "titles": '[a](http://b "' * 20_000,
    "blanks": " \n" * 50_000 + " " * 50_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_shown_in_time_and_without_deep_nesting(plain_page, name):
    depth = """async text => {
        const { Rendered } = await import("/markdown.js");
        const box = document.createElement("div");
        new Rendered(box).show(text);
        let deepest = 0;
        for (const node of box.querySelectorAll("*")) {
            let depth = 0;
            for (let one = node; one !== box; one = one.parentNode) depth += 1;
            deepest = Math.max(deepest, depth);
        }
        return [deepest, box.textContent.length];
    }"""
    deepest, shown = plain_page.evaluate(depth, HOSTILE[name])
    assert deepest <= 40
    assert shown <= len(HOSTILE[name]) + 4 * HOSTILE[name].count("`")
