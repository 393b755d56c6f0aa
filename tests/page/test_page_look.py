"""Dark and light, phones, the keyboard alone, and what the browser keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from page_tools import DONE, ask, delta, ended, last_answer, script, send, until
from server_harness import Running

from conftest import open_page  # isort: skip

pytestmark = pytest.mark.slow
NO_TEXT = '[{"role": "system", "content": [{"type": "image"}]}]'
PHONE = {"viewport": {"width": 360, "height": 640}, "has_touch": True, "is_mobile": True}


def background(page: Any) -> int:
    """How bright it is: the sum of red, green and blue."""
    code = """() => getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).slice(0, 3)
        .reduce((sum, part) => sum + Number(part), 0)"""
    return int(page.evaluate(code))


def test_light_and_dark(page: Any) -> None:
    page.emulate_media(color_scheme="light")
    assert background(page) > 600
    page.emulate_media(color_scheme="dark")
    assert background(page) < 150
    page.click("#open-settings")
    page.select_option("#theme", "light")
    assert background(page) > 600
    page.reload()
    assert background(page) > 600


def test_a_phone(browser: Any, server: Running) -> None:
    context = browser.new_context(**PHONE)
    page = context.new_page()
    open_page(page, server)
    code = "word " * 30
    page.fill("#question", f"```\n{code}\n```\n\n| a | b |\n|---|---|\n| {'x' * 80} | c |")
    page.press("#question", "Enter")  # a finger's Enter starts a line
    assert page.locator(".message").count() == 0
    page.tap("#send")
    page.wait_for_selector(".assistant .stats")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for name in ("#send", "#open-settings", "#open-side", "#question"):
        box = page.locator(name).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 360, name
    assert page.is_hidden("#side")
    page.tap("#open-side")
    page.wait_for_selector("#side:visible")
    page.tap("#list .name")
    page.wait_for_selector("#side", state="hidden")
    context.close()


def test_the_keyboard_alone(page: Any) -> None:
    script(page, [delta(content="Yes.\n\n```\ncode\n```"), ended(), DONE])
    page.keyboard.type("line one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("line two")
    page.keyboard.press("Enter")
    page.wait_for_selector(".assistant .stats")
    assert page.inner_text(".message.user .text") == "line one\nline two"
    focus_on(page, "#open-settings", back=True)
    page.keyboard.press("Enter")
    page.wait_for_selector("#settings[open]")
    page.keyboard.type("Be kind.")
    page.keyboard.press("Escape")
    page.wait_for_selector("#settings[open]", state="hidden")
    assert page.evaluate("document.activeElement.id") == "open-settings"
    focus_on(page, "#list .more", back=True)
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "Export"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.classList.contains('more')")
    assert page.locator(".menu").count() == 0


def focus_on(page: Any, selector: str, *, back: bool) -> None:
    """Press Tab until it has the focus."""
    for _ in range(40):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        if page.evaluate("(s) => document.activeElement.matches(s)", selector):
            return
    pytest.fail(f"Tab does not lead to {selector}")


def test_everything_has_a_name(page: Any) -> None:
    """For screen readers: labels of buttons and fields, in the settings too."""
    ask(page, "hello")
    page.click("#open-settings")
    code = """() => [...document.querySelectorAll('button, input, select, textarea')]
        .filter((one) => one.type !== 'file' && one.id !== 'ask-yes')
        .filter((one) => !(one.getAttribute('aria-label') || one.textContent.trim()
            || (one.labels && one.labels.length) || one.id === 'ask-input'))
        .map((one) => one.outerHTML)"""
    assert page.evaluate(code) == []


def test_a_reload_keeps_everything(page: Any) -> None:
    ask(page, "**kept**")
    send(page, "a long text " * 200)
    until(page, "document.querySelectorAll('.answer')[1]?.textContent.length > 10")
    page.reload()
    page.wait_for_selector("#list .name")
    assert page.inner_text("#list .name") == "**kept**"
    page.click("#list .name")
    assert page.locator(".message").count() == 4
    assert page.inner_text(".answer strong") == "kept"
    page.wait_for_selector("text=Stopped before its end.")


def test_conversations_are_renamed_and_deleted(page: Any) -> None:
    ask(page, "first")
    page.click("#new")
    ask(page, "second")
    assert page.locator("#list .name").all_inner_texts() == ["second", "first"]
    page.locator("#list .more").first.click()
    page.click("role=menuitem[name='Rename']")
    page.fill("#ask-input", "Better")
    page.keyboard.press("Enter")
    page.wait_for_selector("#list .name:has-text('Better')")
    assert page.inner_text("#title") == "Better"
    page.locator("#list .more").first.click()
    page.click("role=menuitem[name='Delete']")
    page.click("#ask-no")
    assert page.locator("#list .name").count() == 2
    page.locator("#list .more").first.click()
    page.click("role=menuitem[name='Delete']")
    page.click("#ask-yes")
    until(page, "document.querySelectorAll('#list li').length === 1")
    assert page.is_visible("#welcome")
    page.reload()
    assert page.locator("#list .name").all_inner_texts() == ["first"]


def test_export_and_import(page: Any, tmp_path: Path) -> None:
    ask(page, "first")
    page.click("#new")
    ask(page, "second")
    page.click("#open-settings")
    with page.expect_download() as download:
        page.click("#export-all")
    file = tmp_path / "all.json"
    download.value.save_as(file)
    kept = json.loads(file.read_text())
    assert [one["title"] for one in kept["conversations"]] == ["second", "first"]
    page.click("#delete-all")
    page.click("#ask-yes")
    until(page, "document.querySelectorAll('#list li').length === 0")
    page.set_input_files("#import-file", file)
    page.wait_for_selector("text=2 imported.")
    assert page.locator("#list .name").count() == 2
    saved = tmp_path / "talk.json"  # what /save of `mlc_llm chat` writes
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "*Ho*"}]
    saved.write_text(json.dumps(messages))
    page.set_input_files("#import-file", saved)
    page.wait_for_selector("#title:has-text('Hi')")
    assert last_answer(page) == "Ho"
    for i, content in enumerate(("", "Be short.", [{"type": "text", "text": "Be short."}])):
        system, question = (
            {"role": "system", "content": content},
            {"role": "user", "content": f"Q{i}"},
        )
        saved.write_text(json.dumps([system, question, messages[1]]))
        page.set_input_files("#import-file", saved)
        page.wait_for_selector(f"#title:text-is('Q{i}')")
        page.click("#open-settings")
        assert page.input_value("#system") == ("Be short." if content else "")
        page.keyboard.press("Escape")
    for text in ("{", "{}", '{"messages": [{"role": "king", "content": "a"}]}', "[3]", NO_TEXT):
        saved.write_text(text)
        page.set_input_files("#import-file", saved)
        page.wait_for_selector("text=Nothing was imported.")
    assert page.locator("#list .name").count() == 6


def test_a_title_has_whole_letters(page: Any) -> None:
    code = """async (content) => {
        const { titleOf } = await import('/page/store.js');
        return titleOf({ messages: [{ role: 'user', content }] });
    }"""
    family = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"
    for letter in ("\N{GRINNING FACE}", family, "e\N{COMBINING ACUTE ACCENT}"):
        assert page.evaluate(code, letter * 48) == letter * 48
        assert page.evaluate(code, "x" * 47 + letter * 2) == "x" * 47 + letter + "…"
    assert page.evaluate(code, "word " * 20) == "word " * 8 + "word…"
    assert page.evaluate(code, "x" * 100_000) == "x" * 48 + "…"


def test_an_import_takes_the_numbers_of_the_settings_alone(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    numbers = {"temperature": 0.5, "n": 128, "stream": 0, "messages": 5, "top_p": "1", "top_k": -1}
    one = {"id": "1", "messages": [], "numbers": numbers}
    value = {"format": "mlc_llm.conversations", "version": 1, "conversations": [one]}
    file.write_text(json.dumps(value))
    page.set_input_files("#import-file", file)
    page.wait_for_selector("text=1 imported.")
    seen = script(page, [delta(content="fine"), ended(), DONE])
    ask(page, "hello")
    assert seen[0]["stream"] is True and len(seen[0]["messages"]) == 1
    assert seen[0]["temperature"] == 0.5 and seen[0]["top_p"] == 0.9
    assert not {"n", "top_k"} & {*seen[0]}


def test_a_full_browser_says_so(page: Any) -> None:
    fill = """() => { let text = 'x'.repeat(1 << 20); let i = 0;
        while (text) { try { localStorage.setItem('filler' + i++, text); }
            catch { text = text.slice(1 + text.length / 2); } } }"""
    page.evaluate(fill)
    assert ask(page, "hello") == "hello"
    page.wait_for_selector("text=This browser has no room for the conversation.")
    page.evaluate("localStorage.clear()")
    ask(page, "again")
    page.wait_for_selector("#banner", state="hidden")


BLOCK = """for (const name of ['localStorage', 'sessionStorage']) {
    const get = () => { throw new DOMException('not allowed', 'SecurityError'); };
    Object.defineProperty(window, name, { get });
}"""


def test_a_browser_that_keeps_nothing(context: Any, server: Running) -> None:
    failures: list[str] = []
    context.add_init_script(BLOCK)
    page = context.new_page()
    page.on("pageerror", lambda error: failures.append(str(error)))
    open_page(page, server)
    assert ask(page, "hello") == "hello"
    page.wait_for_selector("text=This browser does not let the page keep anything")
    page.click("#open-settings")
    page.fill("#key", "sesame")
    page.fill("#system", "Be short.")
    page.keyboard.press("Escape")
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "again")
    assert asked.value.headers["authorization"] == "Bearer sesame"
    assert asked.value.post_data_json["messages"][0]["content"] == "Be short."
    page.click("#new")
    page.wait_for_selector("#welcome:visible")
    assert failures == []


def test_code_is_copied(page: Any, context: Any) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "```py\nprint(1)\n```")
    page.click(".code button")
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "print(1)"


def test_a_text_can_be_read_while_it_grows(page: Any) -> None:
    send(page, "line\n\n" * 300)
    until(page, "document.querySelector('.answer').textContent.length > 200")
    page.evaluate("document.querySelector('#scroller').scrollTop = 0")
    page.wait_for_selector("#to-end:visible")
    page.wait_for_timeout(300)
    assert page.evaluate("document.querySelector('#scroller').scrollTop") < 50
    page.click("#to-end")
    page.wait_for_selector("#to-end", state="hidden")
    page.click("#stop")
