"""Conversations in files: the form, whole files, and files that are something else."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from mlc_llm.cli import conversation
from mlc_llm.cli.conversation import Message, load_messages, save_messages
from mlc_llm.errors import UserError

TALK: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße"},
    {"role": "assistant", "content": ""},
]


def test_a_saved_conversation_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "my talk.json"
    assert save_messages(str(path), TALK) == path
    assert json.loads(path.read_bytes()) == TALK
    assert load_messages(str(path)) == TALK
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    save_messages(str(path), TALK[:1])
    assert load_messages(str(path)) == TALK[:1]
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "talk.json"
    save_messages(str(path), TALK)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conversation.os, "fsync", full)
    with pytest.raises(UserError, match=r"not saved: .*No space left on device"):
        save_messages(str(path), [])
    assert load_messages(str(path)) == TALK
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [b"", b"my thesis", b'{"not": "a conversation"}'])
def test_another_file_is_not_replaced(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not saved, because it would replace another file"):
        save_messages(str(path), TALK)
    assert path.read_bytes() == content


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "talk.json")
    save_messages(str(tmp_path / "link.json"), TALK)
    assert load_messages(str(tmp_path / "talk.json")) == TALK
    assert (tmp_path / "link.json").is_symlink()


@pytest.mark.parametrize("name", ["none/talk.json", ".", "a\0b", "x" * 300])
def test_a_place_that_cannot_be_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        save_messages(name, TALK)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_request_of_openais_shape_is_loaded(tmp_path: Path) -> None:
    messages = [{**one, "name": None} for one in TALK]
    path = tmp_path / "request.json"
    path.write_text(json.dumps({"model": "m", "messages": messages}))
    assert load_messages(str(path)) == TALK


USER, ASSISTANT = TALK[1], TALK[2]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "there is no list of messages"),
        ("text", "there is no list of messages"),
        ([USER], "user and assistant should take turns"),
        ([ASSISTANT, USER], "user and assistant should take turns"),
        ([USER, ASSISTANT, TALK[0]], "user and assistant should take turns"),
        ([USER, 7], r"messages\[1\]: should be an object"),
        ([{"role": "tool", "content": ""}], "role = 'tool': should be system, user or assistant"),
        ([{"role": ["user"], "content": ""}], "role = "),
        ([{"role": "user", "content": [{"type": "text"}]}], "content should be a text"),
        ([{"role": "user", "content": "\ud800"}], "half of a surrogate pair"),
        ([USER, {**ASSISTANT, "tool_calls": [{}]}], "tool_calls is not supported"),
    ],
)
def test_json_that_is_no_conversation(value: object, words: str, tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text(json.dumps(value))
    with pytest.raises(UserError, match=words) as caught:
        load_messages(str(tmp_path / "talk.json"))
    assert "talk.json" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"{", "Failed to parse JSON of .*talk.json"),
        (b"[" * 10_000, "nested too deeply"),
        (b"\xff", "is not UTF-8: byte 0xff"),
        (b" " * 101, "longer than 100 bytes"),
    ],
)
def test_a_file_that_is_no_json(
    content: bytes | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 100 if words.startswith("longer") else 100_000
    monkeypatch.setattr(conversation, "MAX_FILE_BYTES", limit)
    if content is not None:
        (tmp_path / "talk.json").write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        load_messages(str(tmp_path / "talk.json"))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a plain file"):
        load_messages(str(tmp_path / "pipe"))
