"""Make docs/images/engine-room-{light,dark}.png from the running product: `python scripts/screenshots.py`.

Needs chromium and playwright (the test extra). Serves the default model on a free port, holds three chats with one
system prompt, and looks. Runs in about a minute.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parent.parent / "docs" / "images"
SYSTEM = (
    "You are a patient teacher. You explain things to curious people in short, clear paragraphs, with an example from "
    "daily life where it helps, and you never use jargon without saying what it means."
)
QUESTIONS = (
    "Why is the sky blue?",
    "How does a fridge keep food cold?",
    "What makes bread rise? List three steps.",
)


def main() -> None:
    command = [sys.executable, "-m", "pellucid", "serve", "--port", "0", "--max-model-len", "2048"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = next(found[1] for line in server.stdout if (found := re.search(r" at (http://\S+)", line)))
        with sync_playwright() as playwright:
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
            page = browser.new_page(viewport={"width": 1360, "height": 1010}, color_scheme="light")
            hold_three_chats(page, url)
            page.screenshot(path=IMAGES / "engine-room-light.png")
            page.emulate_media(color_scheme="dark")
            page.locator(".assistant .token").nth(8).hover()
            page.wait_for_timeout(300)
            page.screenshot(path=IMAGES / "engine-room-dark.png")
            browser.close()
    finally:
        server.terminate()
        server.wait(30)


def hold_three_chats(page: Page, url: str) -> None:
    page.goto(f"{url}/ui")
    page.wait_for_selector('#status[data-state="live"]')
    page.click("#settings-toggle")
    for name, value in {"system": SYSTEM, "temperature": "0.7", "max_tokens": "220", "seed": "7"}.items():
        page.fill(f"[name={name}]", value)
    page.click("#settings-toggle")
    for index, question in enumerate(QUESTIONS):
        if index:
            page.click("#new-chat")
        page.fill("#prompt", question)
        page.press("#prompt", "Enter")
        page.wait_for_selector(".assistant .token")
    page.locator(".assistant .token").nth(60).wait_for(timeout=60_000)


if __name__ == "__main__":
    main()
