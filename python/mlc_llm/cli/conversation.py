"""A conversation in a file: a JSON list of messages, as in OpenAI's chat requests."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from mlc_llm.cli.terminal import decoded
from mlc_llm.errors import UserError
from mlc_llm.protocol.json_text import parse_json


class Message(TypedDict):
    """A message of a conversation."""

    role: str
    """system, user or assistant"""
    content: str


MAX_FILE_BYTES = 16 * 2**20


def save_messages(name: str, messages: Sequence[Message]) -> Path:
    """Write the file completely or not at all. Returns its path. Only its owner can read it.

    It replaces an older conversation, but no other file. Raises `UserError`.
    """
    path = _path(name)
    if os.path.exists(path):  # unlike Path.exists, it says False for a name that is too long
        try:
            load_messages(name)
        except UserError as error:
            raise UserError(f"not saved, because it would replace another file: {error}") from None
    text = json.dumps(list(messages), ensure_ascii=False, indent=2) + "\n"
    try:
        _replace(path, text.encode("utf-8"))
    except OSError as error:
        raise UserError(f"not saved: {name}: {error.strerror or error}") from None
    return path


def load_messages(name: str) -> list[Message]:
    """The messages of a file. It has a list, or an object with a list named `messages`.

    The list may begin with a system message. Then questions and answers follow in turns.
    Raises `UserError` of one line for any other file.
    """
    found = parse_json(decoded(_content(name), name), name)
    listed = found.get("messages") if isinstance(found, dict) else found
    if not isinstance(listed, list):
        raise UserError(f"{name}: not a conversation: there is no list of messages")
    messages = [_message(name, number, one) for number, one in enumerate(listed)]
    roles = [one["role"] for one in messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if len(turns) % 2 or turns != ["user", "assistant"] * (len(turns) // 2):
        raise UserError(
            f"{name}: not a conversation: after a system message, user and assistant should take"
            " turns and the last message should be the assistant's"
        )
    return messages


def _message(name: str, number: int, value: object) -> Message:
    place = f"{name}: messages[{number}]"
    if not isinstance(value, dict):
        raise UserError(f"{place}: should be an object with role and content")
    role, content = value.get("role"), value.get("content")
    if role not in ("system", "user", "assistant"):
        raise UserError(f"{place}: role = {role!r}: should be system, user or assistant")
    if not isinstance(content, str):
        raise UserError(f"{place}: content should be a text")
    extra = [str(key) for key, v in value.items() if key not in ("role", "content") and v]
    if extra:
        raise UserError(f"{place}: {extra[0]} is not supported here, only role and content")
    try:
        content.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{place}: content has half of a surrogate pair") from None
    return {"role": role, "content": content}


def _content(name: str) -> bytes:
    path = _path(name)
    try:
        if os.path.exists(path) and not path.is_file():
            raise UserError(f"{name}: not a plain file")
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{name}: {error.strerror or error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise UserError(f"{name}: longer than {MAX_FILE_BYTES} bytes")
    return raw


def _path(name: str) -> Path:
    """The path of a name, with links followed. Raises `UserError` for an impossible name."""
    try:
        return Path(name).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{name!r}: {error}") from None


def _replace(path: Path, data: bytes) -> None:
    import tempfile

    number, temporary = tempfile.mkstemp(prefix=f".{path.name[:50]}-", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
