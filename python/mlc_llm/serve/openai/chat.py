"""From chat messages to token ids: pure functions, the same for every front end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import InvalidField, UnsupportedModel
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.messages import TEMPLATE_ROLES, template_messages
from mlc_llm.serve.openai.guard import Guard
from mlc_llm.tokenizers import Tokenizer

_NO_PLACE_FOR_TOOLS = "this model's chat template has no place for tools"


def chat_prompt(
    messages: Sequence[Mapping[str, Any]],
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate | Conversation | None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    max_tokens: int | None = None,
) -> list[int]:
    """Token ids of a conversation, up to where the assistant's answer begins.

    Messages and tools have OpenAI's shapes, as plain dictionaries. The name of a control token
    inside them is ordinary text; only the template's own text makes control tokens. Without such
    names the ids are those of the rendered text. The system text is where the template puts it;
    nothing is added that the template does not say.

    Raises `InvalidField` naming what is wrong with the messages, `UnsupportedModel` without a
    template, `ModelFileError` for a template that fails, and `ContextLengthExceeded` for texts
    that cannot fit into `max_tokens` (before they are tokenised; the ids may still be too many).
    """
    if template is None:
        raise UnsupportedModel("this model has no chat template; give it plain text instead")
    roles = ("system", *template.roles) if isinstance(template, Conversation) else TEMPLATE_ROLES
    plain = template_messages(messages, roles)
    if max_tokens is not None:
        texts = [m["content"] for m in plain if isinstance(m.get("content"), str)]
        tokenizer.check_size(texts, max_tokens)
    if isinstance(template, Conversation):
        pieces = _named(plain, tokenizer, template, tools)
        return _encoded(pieces, tokenizer, max_tokens)
    if tools and "tools" not in template.source:
        raise InvalidField("tools", "...", _NO_PLACE_FOR_TOOLS)
    guard = Guard(tokenizer, avoid=[template.source, plain, tools])
    text = _rendered(plain, guard, template, list(tools) if tools else None)
    if not guard.is_used:
        return tokenizer.encode(text, special=True, max_tokens=max_tokens)
    pieces = [guard.release(piece) for piece in tokenizer.split_control(text)]
    return _encoded(pieces, tokenizer, max_tokens)


def _rendered(
    messages: list[dict[str, Any]],
    guard: Guard,
    template: ChatTemplate,
    tools: list[Mapping[str, Any]] | None,
) -> str:
    # Roles are known words, and templates compare them.
    safe = [{**guard.protect(message), "role": message["role"]} for message in messages]
    return template.render(safe, tools=guard.protect(tools))


def _named(
    messages: list[dict[str, Any]],
    tokenizer: Tokenizer,
    template: Conversation,
    tools: Sequence[Mapping[str, Any]] | None,
) -> list[str | int]:
    """With a named template, its own text and people's text are told apart from the start."""
    if tools:
        template = _with_tools(template, tools)
    if any(one.get("tool_calls") for one in messages):
        raise InvalidField("tool_calls", "...", "this model's chat template cannot show tool calls")
    filled = template.with_messages((one["role"], one.get("content")) for one in messages)
    pieces: list[str | int] = list(template.system_prefix_token_ids or ())
    for piece in filled.prompt_pieces(add_generation_prompt=True):
        pieces += tokenizer.split_control(piece.text) if piece.from_template else [piece.text]
    return pieces


def _with_tools(template: Conversation, tools: Sequence[Mapping[str, Any]]) -> Conversation:
    texts = [template.system_template, *template.roles.values(), *template.role_templates.values()]
    if not any("{function_string}" in text for text in texts):
        raise InvalidField("tools", "...", _NO_PLACE_FOR_TOOLS)
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
    """Neighbouring strings made one: tokens may reach across."""
    joined: list[str | int] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece != "":
            joined.append(piece)
    return joined
