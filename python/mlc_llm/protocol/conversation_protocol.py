"""`Conversation`: a chat template as data, and the prompt that it makes of a list of messages."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from pydantic import Field, ValidationInfo, field_validator
from typing_extensions import Self

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.protocol import checks
from mlc_llm.protocol.base import OpenModel
from mlc_llm.protocol.json_value import JsonValue
from mlc_llm.protocol.messages import content_text
from mlc_llm.record import record


class MessagePlaceholders(Enum):
    """The marks in a template that texts replace."""

    SYSTEM = "{system_message}"
    USER = "{user_message}"
    ASSISTANT = "{assistant_message}"
    TOOL = "{tool_message}"
    FUNCTION = "{function_string}"


MAX_TOKEN_IDS = 1024
Content = str | list[dict[str, object]] | None

_DEFAULT_ROLE_TEMPLATES = {
    "user": MessagePlaceholders.USER.value,
    "assistant": MessagePlaceholders.ASSISTANT.value,
    "tool": MessagePlaceholders.TOOL.value,
}
_REASONING = re.compile(r"\A.*</think>\n*", re.DOTALL)


@record()
class PromptPiece:
    """A part of a prompt. In text of the template, special tokens count. In text of a person, the
    name of a special token is ordinary text."""

    text: str
    from_template: bool


class Conversation(OpenModel):
    """A named template, or a template together with the messages to render.

    Prompt = system part + for each message `role + role_content_sep + text + separator`. The texts
    of messages are not changed: a placeholder inside a text is not replaced.
    """

    name: str | None = None
    system_template: str = MessagePlaceholders.SYSTEM.value
    system_message: str = ""
    render_empty_system_message: bool = True
    """False: without a system message, there is no system part."""
    system_prefix_token_ids: list[int] | None = None
    """Tokens at the start of the prompt. `as_prompt` does not show them."""
    add_role_after_system_message: bool = True
    """False: the first message after a system text has no role in front of it."""
    roles: dict[str, str]
    """Name of a role -> the text that opens its turn."""
    role_templates: dict[str, str] = Field(default_factory=dict)
    """They replace the defaults `{user_message}`, `{assistant_message}` and `{tool_message}`."""
    messages: list[tuple[str, Content]] = Field(default_factory=list)
    """(role, text or parts or None). None opens a turn and leaves it empty."""
    seps: list[str]
    """One separator for all turns, or two: the second is for turns of the assistant."""
    role_content_sep: str = ""
    role_empty_sep: str = ""
    stop_str: list[str] = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list)
    strip_reasoning_in_history: bool = False
    """Remove the assistant's reasoning (up to `</think>`) before the last user message."""
    function_string: str = ""
    use_function_calling: bool = False

    @field_validator("system_prefix_token_ids", "stop_token_ids", mode="before")
    @classmethod
    def _token_ids(cls, value: object, info: ValidationInfo) -> list[int]:
        return checks.token_ids(str(info.field_name), value, MAX_TOKEN_IDS)

    @field_validator("seps")
    @classmethod
    def _one_or_two(cls, value: list[str]) -> list[str]:
        if len(value) not in (1, 2):
            raise InvalidField("seps", value, "should hold one or two separators")
        return value

    @field_validator("role_templates")
    @classmethod
    def _over_defaults(cls, value: dict[str, str]) -> dict[str, str]:
        return {**_DEFAULT_ROLE_TEMPLATES, **value}

    def model_post_init(self, _context: object) -> None:
        """The validator does not run for a default, so the defaults are set here."""
        if not self.role_templates:
            self.role_templates = dict(_DEFAULT_ROLE_TEMPLATES)

    def to_json_dict(self) -> dict[str, JsonValue]:
        """The template as JSON values. `from_json_dict` makes an equal template of them."""
        plain: dict[str, JsonValue] = json.loads(
            self.model_dump_json(by_alias=True, exclude_none=True)
        )
        return plain

    @classmethod
    def from_json_dict(cls, values: Mapping[str, object]) -> Self:
        """The template of JSON values. Raises `UserError` that names the wrong field."""
        return cls.parse(values, "conv_template")

    def with_messages(self, messages: Iterable[tuple[str, Content]]) -> Self:
        """A copy with these messages. This object does not change.

        System messages are allowed only at the beginning. Joined by newlines, they replace the
        system message of the template. A later one raises `UserError` that gives its position.
        """
        pairs = list(messages)
        first = next((i for i, (role, _) in enumerate(pairs) if role != "system"), len(pairs))
        for i, (role, _) in enumerate(pairs):
            if role == "system" and i > first:
                raise UserError(f"System prompt at position {i} in the message list is invalid.")
        update: dict[str, object] = {"messages": pairs[first:]}
        if first:
            update["system_message"] = "\n".join(_plain(content) for _, content in pairs[:first])
        return self.model_copy(update=update)

    def as_prompt(self, *, add_generation_prompt: bool = False) -> list[str]:
        """The prompt as one string in a list."""
        pieces = self.prompt_pieces(add_generation_prompt=add_generation_prompt)
        return ["".join(piece.text for piece in pieces)]

    def prompt_pieces(self, *, add_generation_prompt: bool = False) -> list[PromptPiece]:
        """The prompt in order, in pieces: each is text of the template or text of a person.

        `add_generation_prompt` opens the assistant's turn at the end. Raises `UserError` for a
        role that the template does not know, `UnsupportedModel` for an image.
        """
        pieces = _Pieces()
        has_system = self._add_system(pieces)
        for i, (role, content) in enumerate(self._history()):
            bare = i == 0 and has_system and not self.add_role_after_system_message
            self._add_message(pieces, role, content, bare)
        if add_generation_prompt:
            self._add_message(pieces, "assistant", None, False)
        return pieces.finished(self.function_string)

    def _add_system(self, pieces: _Pieces) -> bool:
        """Add the system part. Returns whether it has any text."""
        if not (self.system_message or self.render_empty_system_message):
            return False
        pieces.add_template(self.system_template, MessagePlaceholders.SYSTEM, self.system_message)
        filled = self.system_template.replace(MessagePlaceholders.SYSTEM.value, self.system_message)
        return filled.replace(MessagePlaceholders.FUNCTION.value, self.function_string) != ""

    def _add_message(self, pieces: _Pieces, role: str, content: Content, bare: bool) -> None:
        if role not in self.roles:
            known = ", ".join(self.roles)
            raise UserError(f'Role "{role[:64]}" is not supported by this template; known: {known}')
        if content is None:
            pieces.add_text(self.roles[role] + self.role_empty_sep)
            return
        if not bare:
            pieces.add_text(self.roles[role] + self.role_content_sep)
        mark = _placeholder(role)
        pieces.add_template(self.role_templates.get(role, mark.value), mark, _plain(content))
        pieces.add_text(self.seps[-1] if role == "assistant" else self.seps[0])

    def _history(self) -> Sequence[tuple[str, Content]]:
        """The messages; without old reasoning if the template says so."""
        if not self.strip_reasoning_in_history:
            return self.messages
        users = [i for i, (role, _) in enumerate(self.messages) if role == "user"]
        last_user = users[-1] if users else -1
        return [
            (role, _REASONING.sub("", _plain(content)))
            if role == "assistant" and content is not None and i < last_user
            else (role, content)
            for i, (role, content) in enumerate(self.messages)
        ]


class _Pieces:
    """Collects pieces. The place of the list of functions is known only at the end."""

    _FUNCTION = MessagePlaceholders.FUNCTION.value

    def __init__(self) -> None:
        self._items: list[PromptPiece | None] = []  # None: a place for the functions

    def add_text(self, text: str) -> None:
        for i, part in enumerate(text.split(self._FUNCTION)):
            if i:
                self._items.append(None)
            self._items.append(PromptPiece(part, True))

    def add_template(self, template: str, mark: MessagePlaceholders, content: str) -> None:
        for i, part in enumerate(template.split(mark.value)):
            if i:
                self._items.append(PromptPiece(content, False))
            self.add_text(part)

    def finished(self, function_string: str) -> list[PromptPiece]:
        """The functions go to the last place; other places stay empty. Neighbours are joined."""
        places = [i for i, item in enumerate(self._items) if item is None]
        if places:
            self._items[places[-1]] = PromptPiece(function_string, False)
        full = [item for item in self._items if item is not None and item.text]
        return [
            PromptPiece("".join(item.text for item in run), from_template)
            for from_template, run in itertools.groupby(full, lambda item: item.from_template)
        ]


def _placeholder(role: str) -> MessagePlaceholders:
    """The placeholder of a role. Roles without an own placeholder use that of the user."""
    return {"assistant": MessagePlaceholders.ASSISTANT, "tool": MessagePlaceholders.TOOL}.get(
        role, MessagePlaceholders.USER
    )


def _plain(content: Content) -> str:
    """The text of a content in any form. Text parts are joined."""
    return content_text("content", content) or ""
