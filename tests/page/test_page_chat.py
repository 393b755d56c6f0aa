"""Sending, streaming, stopping, errors, and what the server gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from page_tools import CHAT, DONE, ask, delta, ended, last_answer, refuse, script, send, until
from server_harness import Running, running

from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.server.limits.settings import ServerSettings
from mlc_llm.serve.server.limits.tenants import read_keys
from mlc_llm.serve.server.pool.openers import EngineOpener
from mlc_llm.testing.tiny_eyes import IMAGE_TOKENS, write_tiny_eyes

from conftest import open_page  # isort: skip

pytestmark = pytest.mark.slow
LONG = "A long text. " * 200


def test_an_answer_streams(page: Any) -> None:
    text = "one two three four five " * 30
    send(page, text)
    page.wait_for_selector("#stop:visible")
    until(page, "document.querySelector('.answer').textContent.length > 10")
    assert len(last_answer(page)) < len(text.strip())  # it is not whole yet
    page.wait_for_selector(".assistant .stats")
    assert last_answer(page) == text.strip()
    assert page.is_hidden("#stop") and page.is_disabled("#send")
    stats = page.inner_text(".assistant .stats")
    assert f"{len(text.strip())} tokens" in stats and "tokens/s" in stats, stats
    assert "of 4,096 tokens" in page.inner_text("#usage")
    assert page.inner_text("#live").startswith("The model answered: one two")


@pytest.mark.parametrize("way", ["button", "Escape"])
def test_stop_ends_the_request(page: Any, server: Running, way: str) -> None:
    send(page, LONG)
    until(page, "document.querySelector('.answer').textContent.length > 10")
    assert server.requests == 1
    if way == "button":
        page.click("#stop")
    else:
        page.keyboard.press(way)
    page.wait_for_selector("text=Stopped before its end.")
    server.wait_idle()
    assert 10 < len(last_answer(page)) < len(LONG.strip())
    page.click("#new")
    assert ask(page, "again") == "again"


def test_a_server_that_refuses_says_why(page: Any) -> None:
    send(page, "x" * 5000)
    page.wait_for_selector("text=maximum context length is 4096 tokens")
    refuse(page, 503, "the server is full.", {"retry-after": "7"})
    page.click("text=Try again")
    page.wait_for_selector("text=the server is full. Try again in 7 s.")
    refuse(page, 502, "")
    page.click("button:has-text('Try again')")
    page.wait_for_selector("text=The server answered with status 502.")
    page.unroute(CHAT)
    assert ask(page, "short") == "short"  # the failed question is not sent again


def test_a_lost_connection_offers_to_try_again(page: Any, context: Any) -> None:
    context.set_offline(True)
    send(page, "hello")
    page.wait_for_selector(".message .trouble:has-text('cannot be reached')")
    context.set_offline(False)
    page.click(".message .trouble button")
    page.wait_for_selector(".assistant .stats")
    assert last_answer(page) == "hello"


def test_a_stream_that_merely_stops_is_no_whole_answer(page: Any) -> None:
    script(page, [delta(content="half of")])
    send(page, "a")
    page.wait_for_selector("text=lost before the answer was complete")
    assert last_answer(page) == "half of"


def test_an_error_inside_a_stream_is_shown(page: Any) -> None:
    error = {"error": {"message": "the engine ended it", "type": "server_error"}}
    script(page, [delta(content="half"), f"data: {json.dumps(error)}\n\n"])
    send(page, "a")
    page.wait_for_selector("text=the engine ended it")


def test_thoughts_are_folded(page: Any) -> None:
    parts = [delta(reasoning_content="Let me <b>see</b>."), delta(content="Four."), ended(), DONE]
    script(page, parts)
    assert ask(page, "What is 2 + 2?") == "Four."
    assert page.is_hidden(".thought")
    page.click("details.thinking summary")
    assert page.inner_text(".thought") == "Let me <b>see</b>."
    assert "7 tokens" in page.inner_text(".stats")


def test_a_cut_answer_says_so(page: Any) -> None:
    script(page, [delta(content="and so"), ended("length"), DONE])
    ask(page, "a")
    page.wait_for_selector("text=Cut: the longest answer is reached")


def test_what_the_server_gets(page: Any) -> None:
    seen = script(page, [delta(content="fine"), ended(), DONE])
    ask(page, "first")
    assert seen[0]["messages"] == [{"role": "user", "content": "first"}]
    assert seen[0]["model"] == "mock://echo" and seen[0]["stream"] is True
    assert seen[0]["temperature"] == 0.2  # shown in the settings, as the model says nothing
    page.click("#open-settings")
    assert page.get_attribute("#set-temperature", "placeholder") == "0.2"
    page.fill("#system", "Be short.")
    page.fill("#set-temperature", "0.7")
    page.fill("#set-seed", "3")
    page.fill("#set-top_p", "7")
    page.wait_for_selector("text=Should be a number from 0 to 1. Not used.")
    page.fill("#set-top_k", "-1")
    page.wait_for_selector("text=Should be a whole number from 0. Not used.")
    page.keyboard.press("Escape")
    ask(page, "second")
    assert [one["role"] for one in seen[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert (seen[1]["temperature"], seen[1]["seed"], seen[1]["top_p"]) == (0.7, 3, 0.9)
    assert "top_k" not in seen[1]


def test_an_answer_is_written_anew_and_a_message_edited(page: Any) -> None:
    seen = script(page, [delta(content="fine"), ended(), DONE])
    ask(page, "first")
    ask(page, "second")
    page.click("[aria-label='Write this answer anew']")
    until(page, "document.querySelectorAll('.assistant .stats').length === 2")
    assert seen[2]["messages"] == seen[1]["messages"]
    page.locator(".message.user").first.hover()
    page.locator("[aria-label='Edit this message']").first.click()
    page.fill(".editor textarea", "first, better")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.message.user').length === 1")
    page.wait_for_selector(".assistant .stats")
    assert seen[3]["messages"] == [{"role": "user", "content": "first, better"}]
    page.click("[aria-label='Edit this message']")
    page.keyboard.press("Escape")
    assert page.inner_text(".message.user .text") == "first, better"


def test_pictures_only_where_the_model_sees(page: Any, server: Running) -> None:
    assert page.is_hidden("#attach")
    entry = server.call("GET", "/v1/models").json
    entry["data"][0]["input_modalities"] = ["text", "image"]
    page.route("**/v1/models", lambda route: route.fulfill(json=entry))
    open_page(page, server)
    page.wait_for_selector("#attach")
    dot = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
    page.set_input_files("#file", {"name": "dot.png", "mimeType": "image/png", "buffer": dot})
    page.wait_for_selector("#pictures img", state="attached")
    seen = script(page, [delta(content="a dot"), ended(), DONE])
    ask(page, "What is this?")
    picture, text = seen[0]["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("data:image/png;base64,iVBO")
    assert text == {"type": "text", "text": "What is this?"}
    assert page.is_hidden("#pictures")
    file = {"name": "a.svg", "mimeType": "image/svg+xml", "buffer": b"<svg/>"}
    page.set_input_files("#file", file)
    page.wait_for_selector("text=a.svg is no PNG")


def test_a_model_that_sees_gets_the_picture(context: Any, tmp_path: Path) -> None:
    """A tiny model with a tower behind the real server: the picture goes into its prompt."""
    pillow = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")
    model = write_tiny_eyes(tmp_path).model
    for name, colour in (("red.png", (255, 0, 0)), ("blue.png", (0, 0, 255))):
        pillow.new("RGB", (40, 30), colour).save(tmp_path / name)
    config = EngineConfig(verbose=False, kernels="reference", max_num_sequence=2)
    opener = EngineOpener("cpu", config)
    with running(ServerSettings(port=0), [str(model)], opener) as seeing:
        page, sent = context.new_page(), []
        page.on("request", lambda one: sent.append(one.post_data_json) if one.post_data else None)
        prompts, answers = [], []
        for name in ("", "red.png", "blue.png"):
            open_page(page, seeing)
            page.wait_for_selector("#attach:visible")
            page.click("#new")
            if name:
                page.set_input_files("#file", str(tmp_path / name))
                page.wait_for_selector("#pictures img", state="attached")
            answers.append(ask(page, "What is it?"))
            stats = page.locator(".message.assistant .stats").last.inner_text()
            prompts.append(int(stats.split("prompt ")[1].split()[0].rstrip(",")))
            assert page.locator(".message.user img").count() == bool(name)
    assert prompts[1] == prompts[2] >= prompts[0] + IMAGE_TOKENS
    assert answers[1] != answers[2], "the picture changes nothing"
    asked = [one["messages"][-1]["content"] for one in sent if one and "messages" in one]
    assert len(asked) == 3
    for content in asked[1:]:
        picture, text = content
        assert picture["image_url"]["url"].startswith("data:image/png;base64,")
        assert text == {"type": "text", "text": "What is it?"}


def test_a_key_is_asked_for_and_kept_for_the_tab(context: Any) -> None:
    with running(ServerSettings(port=0, keys=read_keys(["open sesame"], None))) as locked:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{locked.port}/")
        page.click("#banner button:has-text('Give the key')")
        page.fill("#key", "wrong")
        page.keyboard.press("Escape")
        page.wait_for_selector("text=The server does not know this key.")
        page.click("#banner button:has-text('Give the key')")
        page.fill("#key", "open sesame")
        page.keyboard.press("Escape")
        page.wait_for_selector("#model option", state="attached")
        assert ask(page, "hello") == "hello"
        page.reload()
        page.wait_for_selector("#model option", state="attached")
        assert "sesame" not in page.evaluate("JSON.stringify(localStorage)")
        assert page.evaluate("sessionStorage.length") == 1
        page.close()
