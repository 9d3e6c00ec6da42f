"""The page at / in a real browser, against a real server: chat, live view, keyboard, colours.

Needs Chromium (Debian: `apt-get install chromium`). `TANDEM_SCREENSHOTS=docs/images` keeps pictures
of what was seen; a person has to look at them.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect, sync_playwright

from tests.process.server import Server

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.timeout(300)]

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
SLOW_MS = 60_000
"""The embedded model on two busy cores."""
LEVELS = ["wcag2a", "wcag2aa", "wcag21aa"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder, Server.start(Path(folder)) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("no Chromium on PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        # Root may not use the sandbox; the page is our own.
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Browser, server: Server) -> Iterator[Page]:
    """The page in both colours; at the end nothing was wrong and nothing came from elsewhere."""
    opened = browser.new_page(color_scheme=request.param, viewport={"width": 1360, "height": 1000})
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if is_wrong(said) else None)
    opened.on(
        "request",
        lambda asked: None if asked.url.startswith(server.url) else wrong.append(asked.url),
    )
    opened.goto(server.url)
    expect(opened.locator("#state")).to_have_text("ready", timeout=SLOW_MS)
    yield opened
    picture(opened, f"{request.node.originalname}-{request.param}")
    opened.close()
    assert not wrong


def is_wrong(said: ConsoleMessage) -> bool:
    """Chromium logs refused requests by itself; the page shows them to the person."""
    refused = re.search(r"status of 40[01]", said.text)
    return said.type == "error" and not refused


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("TANDEM_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name.removeprefix('test_')}.png")


def answer(page: Page, number: int = -1):
    return page.locator(".message.assistant").nth(number)


def ask_greedily(page: Page) -> None:
    """Open the parameters, set the temperature to 0, and go back to the prompt, by keyboard."""
    page.locator("#settings summary").press("Enter")
    page.fill("#temperature", "0")
    page.locator("#prompt").focus()


def test_a_question_typed_on_the_keyboard_is_answered_as_it_is_written(page: Page) -> None:
    expect(page.locator("#prompt")).to_be_focused()
    ask_greedily(page)
    page.keyboard.type("What is the capital of France?")
    page.keyboard.press("Enter")
    expect(answer(page)).to_contain_text("Paris", timeout=SLOW_MS)
    expect(answer(page).locator(".about")).to_contain_text("tokens/s", timeout=SLOW_MS)
    expect(answer(page).locator(".about")).to_contain_text("first token after")
    expect(page.locator("#announcer")).to_contain_text("Paris")
    page.keyboard.type("And of Italy?")
    page.keyboard.press("Enter")
    expect(page.locator(".message.user")).to_have_count(2)
    expect(answer(page, 1).locator(".about")).to_contain_text("tokens/s", timeout=SLOW_MS)


def test_escape_stops_an_answer_and_the_server_goes_idle(page: Page) -> None:
    page.keyboard.type("Count from one to five hundred, in words.")
    page.keyboard.press("Enter")
    expect(answer(page).locator(".text")).not_to_be_empty(timeout=SLOW_MS)
    page.keyboard.press("Escape")
    expect(answer(page).locator(".about")).to_contain_text("stopped")
    expect(page.locator("#running")).to_have_text("0", timeout=SLOW_MS)
    expect(page.locator("#send")).to_be_visible()


def test_parameters_are_sent_and_a_refusal_is_shown(page: Page) -> None:
    ask_greedily(page)
    page.fill("#max_tokens", "3")
    page.fill("#prompt", "Tell me a story.")
    page.press("#prompt", "Enter")
    expect(answer(page)).to_contain_text("cut at the limit", timeout=SLOW_MS)
    page.fill("#top_p", "7")
    page.fill("#prompt", "Again.")
    page.press("#prompt", "Enter")
    expect(answer(page).locator(".error")).to_contain_text("top_p", timeout=SLOW_MS)


def test_under_load_the_split_moves_and_the_figures_follow(page: Page) -> None:
    page.click("#load")
    device = page.locator("#device")
    both = re.compile("Prefill on 1 core, decode on 1 core")
    alone = re.compile("on 0 cores")
    for seen in (both, alone, both):
        expect(device).to_have_attribute("aria-label", seen, timeout=SLOW_MS)
    expect(page.locator("#running")).not_to_have_text("0")
    expect(page.locator("#tbt-more")).to_contain_text("kept it", timeout=SLOW_MS)
    expect(page.locator("#reason")).to_contain_text("muxwise")
    assert page.locator("#split-chart path").count() == 2
    picture(page, f"load-{page.evaluate('matchMedia(`(prefers-color-scheme: dark)`).matches')}")
    page.click("#load")
    expect(page.locator("#load")).to_have_text("Make some load")
    expect(page.locator("#running")).to_have_text("0", timeout=SLOW_MS)


def test_it_breaks_no_rule_of_accessibility_that_a_program_can_check(page: Page) -> None:
    for summary in page.locator("summary").all():
        summary.click()
    page.fill("#prompt", "Hello.")
    page.press("#prompt", "Enter")
    expect(answer(page).locator(".about")).to_contain_text("first token", timeout=SLOW_MS)
    options = {"runOnly": {"type": "tag", "values": LEVELS}}
    found = Axe().run(page, options=options)
    assert found.violations_count == 0, found.generate_report()


def test_where_the_api_wants_a_key_the_page_asks_for_it_and_keeps_it_for_the_tab(
    page: Page, server: Server
) -> None:
    def guard(route: Route) -> None:
        given = route.request.headers.get("authorization")
        if given == "Bearer right":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": {"message": "which key?"}})

    page.route(re.compile(f"{re.escape(server.url)}/(v1/|activity)"), guard)
    page.reload()
    dialog = page.get_by_role("dialog")
    expect(page.get_by_label("API key")).to_be_focused()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("does not know that key")
    page.get_by_label("API key").fill("right")
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.locator("#state")).to_have_text("ready")
    page.reload()
    expect(page.locator("#state")).to_have_text("ready")
    page.get_by_role("button", name="Forget key").click()
    expect(dialog).to_be_visible()


def test_a_narrow_window_needs_no_sideways_scrolling(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    expect(page.locator("#prompt")).to_be_visible()
