"""Two tabs with the same conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from page_tools import ask, send, until
from server_harness import Running

from conftest import opened_page  # isort: skip

pytestmark = pytest.mark.slow
LONG = "A long text. " * 200
WRITING = "document.querySelector('.answer')?.textContent.length > 10"


@pytest.fixture
def other(page: Any, context: Any, server: Running) -> Iterator[Any]:
    """A second tab."""
    with opened_page(context, server) as made:
        yield made


def open_conversation(page: Any, title: str) -> None:
    page.click(f"#list .name:text-is('{title}')")
    page.wait_for_selector(f"#title:text-is('{title}')")


def shown(page: Any, count: int) -> None:
    """Wait until the page shows so many messages."""
    until(page, f"document.querySelectorAll('.message').length === {count}")


def kept(page: Any) -> list[Any]:
    """The conversations that the browser keeps."""
    code = """() => Object.entries(localStorage)
        .filter(([name]) => name.startsWith('mlc_llm.chat.')).map(([, text]) => text)"""
    return [json.loads(one) for one in page.evaluate(code)]


def test_turns_of_another_tab_stay(page: Any, other: Any) -> None:
    ask(page, "first")
    send(other, LONG)
    until(other, WRITING)
    open_conversation(other, "first")
    shown(other, 2)
    ask(page, "second")
    shown(other, 4)
    assert "in another conversation" in other.inner_text("#usage")  # the answer still grows
    other.click("#stop")
    other.wait_for_selector("#send")
    ask(other, "third")
    shown(page, 6)
    (found,) = [one for one in kept(page) if one["title"] == "first"]
    questions = [one["content"] for one in found["messages"] if one["role"] == "user"]
    assert questions == ["first", "second", "third"]


def test_two_tabs_that_write_at_once_keep_both_answers(page: Any, other: Any) -> None:
    send(page, LONG)
    until(page, WRITING)
    other.wait_for_selector("#list .name")
    other.click("#list .name")
    shown(other, 2)
    send(other, LONG[2:])
    until(other, "document.querySelectorAll('.message').length === 4")
    page.wait_for_selector("text=Another tab goes on")
    for one in (page, other):
        one.click("#stop")
        one.wait_for_selector("#send")
    alone, both = sorted(kept(page), key=lambda one: len(one["messages"]))
    assert [len(one["messages"]) for one in (alone, both)] == [2, 4]
    assert both["messages"][2]["content"] == LONG[2:].strip()
    whole, part = (one["messages"][1]["content"] for one in (alone, both))
    assert whole.startswith(part) and len(whole) > len(part)
    until(page, "document.querySelectorAll('#list .name').length === 2")
    shown(page, 2)


def test_settings_that_another_tab_gives_meanwhile_stay(page: Any, other: Any) -> None:
    send(page, LONG)
    until(page, WRITING)
    other.wait_for_selector("#list .name")
    other.click("#list .name")
    shown(other, 2)
    other.click("#open-settings")
    other.fill("#system", "Be short.")
    other.keyboard.press("Escape")
    page.click("#stop")
    page.wait_for_selector("#send")
    (found,) = kept(page)
    assert found["system"] == "Be short."


def test_what_another_tab_says_of_a_conversation_is_taken_over(page: Any, other: Any) -> None:
    ask(page, "first")
    open_conversation(other, "first")
    page.click("#open-settings")
    page.fill("#system", "Be short.")
    page.keyboard.press("Escape")
    until(other, "document.querySelectorAll('#list .name').length === 1")
    ask(other, "second")
    (found,) = kept(other)
    assert found["system"] == "Be short." and len(found["messages"]) == 4


def delete(page: Any) -> None:
    """Delete the first conversation of the list."""
    page.locator("#list .more").first.click()
    page.click("role=menuitem[name='Delete']")
    page.click("#ask-yes")


@pytest.mark.parametrize("stays", [True, False])
def test_what_another_tab_deletes_stays_deleted(page: Any, other: Any, stays: bool) -> None:
    send(page, LONG)
    until(page, WRITING)
    if not stays:
        page.click("#new")
    other.wait_for_selector("#list .name")
    delete(other)
    page.wait_for_selector("#send")  # it writes no more
    until(page, "document.querySelectorAll('#list .name').length === 0")
    assert page.is_visible("#welcome") and kept(page) == []
    assert page.is_visible("text=deleted in another tab") is stays
    page.reload()
    page.wait_for_selector("#welcome:visible")
    assert kept(page) == []


def test_leaving_the_page_keeps_nothing_deleted(page: Any) -> None:
    send(page, LONG)
    until(page, WRITING)
    page.evaluate("localStorage.clear()")  # as another tab does, before this one hears of it
    page.reload()
    page.wait_for_selector("#welcome:visible")
    assert kept(page) == []


def rename(page: Any, title: str) -> None:
    """Give the first conversation of the list another name."""
    page.locator("#list .more").first.click()
    page.click("role=menuitem[name='Rename']")
    page.fill("#ask-input", title)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_name_given_while_the_answer_is_written_stays(
    page: Any, other: Any, elsewhere: bool
) -> None:
    send(page, LONG)
    until(page, WRITING)
    page.click("#new")
    other.wait_for_selector("#list .name")
    chosen = other if elsewhere else page
    rename(chosen, "Better")
    chosen.keyboard.press("Enter")
    page.wait_for_selector("#list .name:text-is('Better')")
    page.click("#list .name")
    page.click("#stop")
    page.wait_for_selector("#send")
    assert page.inner_text("#list .name") == "Better"
    assert [one["title"] for one in kept(page)] == ["Better"]


def test_what_is_deleted_takes_no_name(page: Any, other: Any) -> None:
    ask(page, "first")
    page.click("#new")
    rename(page, "Better")
    other.wait_for_selector("#list .name")
    delete(other)
    until(page, "document.querySelectorAll('#list .name').length === 0")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=deleted in another tab")
    assert kept(page) == []


def test_an_open_edit_field_stays_while_another_tab_writes(page: Any, other: Any) -> None:
    ask(page, "first")
    page.locator(".message.user").first.hover()
    page.click("[aria-label='Edit this message']")
    page.fill(".editor textarea", "half of it")
    focused = "document.activeElement === document.querySelector('.editor textarea')"
    ask(other, "another conversation")
    until(page, "document.querySelectorAll('#list .name').length === 2")
    assert page.evaluate(focused)
    open_conversation(other, "first")
    ask(other, "second")  # below the message that is edited
    shown(page, 4)
    assert page.evaluate(focused)
    page.keyboard.press("Control+End")
    page.keyboard.type(", and the rest")
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.user .text:text-is('half of it, and the rest')")
    shown(page, 2)
