"""The chat page in a real browser: Debian's Chromium, driven by Playwright. CONTRIBUTING.md says
how to run these tests. They are skipped, with the reason, where one of the two is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from server_harness import Running, running
from threaded_harness import slow_steps, watched

HANGS_AFTER_S = 300.0
WAIT_MS = 60_000
"""The longest wait for something on the page."""
SANDBOX = ["--no-sandbox", "--disable-dev-shm-usage"]
"""Chromium has no sandbox for root, as which containers run."""


def chromium() -> str:
    """Its path. Skips the test where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.skip("the tests of the page need Chromium (Debian: apt-get install chromium)")
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    reason = "the tests of the page need `pip install playwright`"
    api = pytest.importorskip("playwright.sync_api", reason=reason)
    path = chromium()
    with api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=SANDBOX)
        yield made
        made.close()


@pytest.fixture(autouse=True)
def watch(request: pytest.FixtureRequest) -> Iterator[None]:
    with watched(request.config, HANGS_AFTER_S), slow_steps():
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as made:
        yield made


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    made = browser.new_context(viewport={"width": 1100, "height": 760})
    made.set_default_timeout(WAIT_MS)
    yield made
    made.close()


@pytest.fixture
def page(context: Any, server: Running) -> Iterator[Any]:
    """The page of the echo server, ready."""
    with opened_page(context, server) as made:
        yield made


@contextmanager
def opened_page(context: Any, server: Running) -> Iterator[Any]:
    """The page in a tab of its own, ready. A test fails if a script of it failed."""
    made = context.new_page()
    failures: list[str] = []
    made.on("pageerror", lambda error: failures.append(str(error)))
    open_page(made, server)
    yield made
    assert failures == []


def open_page(page: Any, server: Running) -> None:
    page.goto(f"http://127.0.0.1:{server.port}/")
    page.wait_for_selector("#model option", state="attached")
