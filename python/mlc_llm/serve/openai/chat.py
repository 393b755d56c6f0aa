"""Makes token ids of chat messages: pure functions, the same for every front end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import InvalidField, ModelFileError, UnsupportedModel
from mlc_llm.images.picture import Picture
from mlc_llm.images.reader import ImageReader
from mlc_llm.protocol.messages import (
    TEMPLATE_ROLES,
    GivenImages,
    GivenMessage,
    GivenTool,
    TemplateMessage,
    template_messages,
)
from mlc_llm.record import record
from mlc_llm.serve.data import Data, ImageData, TokenData
from mlc_llm.serve.openai.chat_images import free_mark, wants_parts, with_images, with_parts
from mlc_llm.serve.openai.guard import Guard
from mlc_llm.serve.openai.system_messages import system_first, without_system
from mlc_llm.tokenizers import Tokenizer

if TYPE_CHECKING:
    from mlc_llm.protocol.conversation_protocol import Conversation


class ChatPrompt(NamedTuple):
    """A conversation, up to the place where the assistant's answer begins."""

    ids: list[int]
    end: str
    """The last text of the template, as a text."""
    pictures: tuple[Picture, ...] = ()
    """The images: the first one stands where -1 is among the ids, the next one where -2 is."""

    @property
    def token_ids(self) -> list[int]:
        """Raises `InvalidField` for a conversation with images."""
        if self.pictures:
            raise InvalidField("messages", "<images>", "the tokens of images have no ids")
        return self.ids

    @property
    def length(self) -> int:
        """Tokens, those of the images included."""
        return len(self.ids) + sum(one.tokens - 1 for one in self.pictures)

    def inputs(self) -> list[Data]:
        """As an engine takes them."""
        found, text = list[Data](), list[int]()
        for one in self.ids:
            if one >= 0:
                text.append(one)
                continue
            found += [TokenData(text)] if text else []
            found.append(ImageData(self.pictures[-1 - one]))
            text = []
        return [*found, TokenData(text)] if text else found


def chat_prompt(
    messages: Sequence[GivenMessage],
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate | Conversation | None,
    tools: Sequence[GivenTool] | None = None,
    max_tokens: int | None = None,
) -> list[int]:
    """The token ids of `rendered_chat`."""
    return rendered_chat(
        messages, tokenizer=tokenizer, template=template, tools=tools, max_tokens=max_tokens
    ).ids


def rendered_chat(
    messages: Sequence[GivenMessage],
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate | Conversation | None,
    tools: Sequence[GivenTool] | None = None,
    max_tokens: int | None = None,
    variables: Mapping[str, object] | None = None,
    images: ImageReader | None = None,
) -> ChatPrompt:
    """A conversation, up to the place where the assistant's answer begins.

    Messages and tools have OpenAI's shapes, as plain dictionaries. The name of a control token
    inside them is ordinary text; only the template's own text makes control tokens. Without such
    names, the ids are those of the rendered text. The template decides where the system text
    stands; if it refuses the conversation, its plainer forms are tried (`system_messages`). What it
    has no place for, of tools and their calls, stands in texts (`tools/history`); nothing else is
    added that is not in the template. variables: more values that the template
    reads. images: how the model reads images; None: it reads none.

    Raises `InvalidField` that names the mistake in the messages, `UnsupportedModel` without a
    template, and `ModelFileError` for a template that fails. Raises `ContextLengthExceeded` for
    texts that are too long for `max_tokens` tokens. This is an estimate before they are tokenised:
    the ids may still be too many.
    """
    template = _for_tools(template, tools)
    if template is None:
        raise UnsupportedModel("this model has no chat template; give it plain text instead")
    seen = None if images is None else GivenImages(free_mark(messages))
    plain = template_messages(messages, _roles(template), seen)
    if max_tokens is not None:
        texts = [m["content"] for m in plain if m["content"] is not None]
        tokenizer.check_size(texts, max_tokens)
    if not isinstance(template, ChatTemplate):
        if seen is not None and seen.urls:
            raise UnsupportedModel("this model's chat template has a name and no place for images")
        pieces = _named(plain, tokenizer, template, tools or ())
        end = next((one for one in reversed(pieces) if isinstance(one, str)), "")
        return ChatPrompt(_encoded(pieces, tokenizer, max_tokens), end)
    mark = None if seen is None else seen.mark
    form = _Form(template, tokenizer, tools or (), variables or {}, mark)
    text, guard = _accepted(plain, form)
    end = text[-_END_CHARS:]
    if images is not None and seen is not None and seen.urls:
        released = [guard.release(piece) for piece in tokenizer.split_control(text)]
        pieces, pictures = with_images(released, seen.urls, images, tokenizer, max_tokens)
        return ChatPrompt(_encoded(pieces, tokenizer, max_tokens), end, pictures)
    if not guard.is_used:
        return ChatPrompt(tokenizer.encode(text, special=True, max_tokens=max_tokens), end)
    pieces = [guard.release(piece) for piece in tokenizer.split_control(text)]
    return ChatPrompt(_encoded(pieces, tokenizer, max_tokens), end)


_END_CHARS = 256


def _for_tools(
    template: ChatTemplate | Conversation | None, tools: Sequence[GivenTool] | None
) -> ChatTemplate | Conversation | None:
    """See `for_tools`. Chats without tools load none of their forms."""
    if not tools:
        return template
    from mlc_llm.serve.openai.tools.families import for_tools

    return for_tools(template, tools)


def _roles(template: ChatTemplate | Conversation) -> tuple[str, ...]:
    """The roles of messages. Results of tools are shown by any template."""
    if isinstance(template, ChatTemplate):
        return TEMPLATE_ROLES
    return tuple(dict.fromkeys(["system", *template.roles, "tool"]))


def _shown(
    messages: list[TemplateMessage],
    tools: Sequence[GivenTool],
    template: ChatTemplate | Conversation,
) -> tuple[list[TemplateMessage], bool]:
    """See `shown_messages`. Texts alone need nothing of tools, whose forms take long to load."""
    if not tools and not any("tool_calls" in one or one["role"] == "tool" for one in messages):
        return messages, False
    from mlc_llm.serve.openai.tools.history import shown_messages

    return shown_messages(messages, tools, template)


@record()
class _Form:
    """What a template gets besides the messages."""

    template: ChatTemplate
    tokenizer: Tokenizer
    tools: Sequence[GivenTool]
    variables: Mapping[str, object]
    mark: str | None
    """Of images in texts. None: the model reads none."""


def _accepted(messages: list[TemplateMessage], form: _Form) -> tuple[str, Guard]:
    """The conversation as a text. If the template refuses it as it is, or passes over a system
    message, plainer forms of these are tried. Raises like `ChatTemplate.render`."""
    systems = [one["content"] or "" for one in messages if one["role"] == "system"]
    # An image that is moved would be another one's place.
    may_move = form.mark is None or not any(form.mark in one for one in systems)
    first = system_first(messages) if systems and may_move else messages
    try:
        found = _rendered(messages, form)
    except InvalidField:
        if not systems or not may_move:
            raise
        for is_without in (False, True):
            if is_without or first != messages:
                with contextlib.suppress(InvalidField, ModelFileError):
                    return _rendered(first, form, is_without=is_without)
        raise
    if first != messages and not _shows(found, systems):
        with contextlib.suppress(InvalidField, ModelFileError):
            plainer = _rendered(first, form)
            return plainer if _shows(plainer, systems) else found
    return found


def _shows(rendered: tuple[str, Guard], texts: Sequence[str]) -> bool:
    """All texts are in the rendered one, which may have them without white space at their ends."""
    text, guard = rendered
    released = str(guard.release(text))
    return all(one.strip() in released for one in texts)


def _rendered(
    messages: list[TemplateMessage], form: _Form, *, is_without: bool = False
) -> tuple[str, Guard]:
    """is_without: the template gets no system message."""
    template = form.template
    shown, by_template = _shown(messages, form.tools, template)
    shown = without_system(shown) if is_without else shown
    always = form.mark is not None and wants_parts(template)
    if form.mark is not None:
        shown = with_parts(shown, form.mark, always=always)
    given = form.tools if by_template else ()
    avoid = [template.source, template.tokens, shown, given, form.variables]
    guard = Guard(form.tokenizer, avoid=avoid)
    # Roles are known words, and templates compare them.
    safe = [{**guard.protected(message), "role": message["role"]} for message in shown]
    variables = guard.protected(form.variables)

    def rendered(tools: Sequence[GivenTool]) -> str:
        safe_tools = [guard.protected(tool) for tool in tools] or None
        return template.render(safe, tools=safe_tools, variables=variables)

    try:
        return rendered(given), guard
    except ModelFileError:  # some templates read what a tool need not have, or one type only
        whole = [_completed(tool) for tool in given]
        if whole == list(given):
            raise
        return rendered(whole), guard


def _completed(tool: GivenTool) -> GivenTool:
    """The tool with a description and parameters, which are empty if it has none. A schema has one
    type at most, and not null."""
    from mlc_llm.serve.openai.tools.tool_schema import with_single_types

    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    parameters = function.get("parameters")
    given = parameters if isinstance(parameters, Mapping) else {}
    whole = with_single_types({"type": "object", "properties": {}, **given})
    made = {"description": function.get("description") or "", "parameters": whole}
    return {**tool, "function": {**function, **made}}


def _named(
    messages: list[TemplateMessage],
    tokenizer: Tokenizer,
    template: Conversation,
    tools: Sequence[GivenTool],
) -> list[str | int]:
    """A named template says itself which text is its own and which text is a person's."""
    shown, by_template = _shown(messages, tools, template)
    if tools and by_template:
        template = _with_tools(template, tools)
    filled = template.with_messages((one["role"], one["content"]) for one in shown)
    pieces: list[str | int] = list(template.system_prefix_token_ids or ())
    for piece in filled.prompt_pieces(add_generation_prompt=True):
        pieces += tokenizer.split_control(piece.text) if piece.from_template else [piece.text]
    return pieces


def _with_tools(template: Conversation, tools: Sequence[GivenTool]) -> Conversation:
    functions = json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)
    update = {"use_function_calling": True, "function_string": functions}
    return template.model_copy(update=update)


def _encoded(
    pieces: Sequence[str | int], tokenizer: Tokenizer, max_tokens: int | None
) -> list[int]:
    joined = _joined(pieces)
    if max_tokens is not None:
        tokenizer.check_size([piece for piece in joined if isinstance(piece, str)], max_tokens)
    return tokenizer.encode_segments(joined)


def _joined(pieces: Sequence[str | int]) -> list[str | int]:
    """Neighbouring strings joined, because a token may begin in one and end in the next."""
    joined: list[str | int] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece != "":
            joined.append(piece)
    return joined
