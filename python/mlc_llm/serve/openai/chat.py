"""Makes token ids of chat messages: pure functions, the same for every front end."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import InvalidField, UnsupportedModel
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.messages import (
    TEMPLATE_ROLES,
    GivenMessage,
    GivenTool,
    TemplateMessage,
    template_messages,
)
from mlc_llm.serve.openai.guard import Guard
from mlc_llm.tokenizers import Tokenizer

_NO_PLACE_FOR_TOOLS = "this model's chat template has no place for tools"


def chat_prompt(
    messages: Sequence[GivenMessage],
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate | Conversation | None,
    tools: Sequence[GivenTool] | None = None,
    max_tokens: int | None = None,
) -> list[int]:
    """Token ids of a conversation, up to the place where the assistant's answer begins.

    Messages and tools have OpenAI's shapes, as plain dictionaries. The name of a control token
    inside them is ordinary text; only the template's own text makes control tokens. Without such
    names, the ids are those of the rendered text. The template decides where the system text
    stands, and nothing is added that is not in the template.

    Raises `InvalidField` that names the mistake in the messages, `UnsupportedModel` without a
    template, and `ModelFileError` for a template that fails. Raises `ContextLengthExceeded` for
    texts that are too long for `max_tokens` tokens. This is an estimate before they are tokenised:
    the ids may still be too many.
    """
    if template is None:
        raise UnsupportedModel("this model has no chat template; give it plain text instead")
    roles = ("system", *template.roles) if isinstance(template, Conversation) else TEMPLATE_ROLES
    plain = template_messages(messages, roles)
    if max_tokens is not None:
        texts = [m["content"] for m in plain if m["content"] is not None]
        tokenizer.check_size(texts, max_tokens)
    if isinstance(template, Conversation):
        pieces = _named(plain, tokenizer, template, tools)
        return _encoded(pieces, tokenizer, max_tokens)
    if tools and "tools" not in template.source:
        raise InvalidField("tools", "...", _NO_PLACE_FOR_TOOLS)
    guard = Guard(tokenizer, avoid=[template.source, plain, tools])
    text = _rendered(plain, guard, template, tools)
    if not guard.is_used:
        return tokenizer.encode(text, special=True, max_tokens=max_tokens)
    pieces = [guard.release(piece) for piece in tokenizer.split_control(text)]
    return _encoded(pieces, tokenizer, max_tokens)


def _rendered(
    messages: list[TemplateMessage],
    guard: Guard,
    template: ChatTemplate,
    tools: Sequence[GivenTool] | None,
) -> str:
    # Roles are known words, and templates compare them.
    safe = [{**guard.protected(message), "role": message["role"]} for message in messages]
    return template.render(safe, tools=[guard.protected(tool) for tool in tools or ()] or None)


def _named(
    messages: list[TemplateMessage],
    tokenizer: Tokenizer,
    template: Conversation,
    tools: Sequence[GivenTool] | None,
) -> list[str | int]:
    """A named template says itself which text is its own and which text is a person's."""
    if tools:
        template = _with_tools(template, tools)
    if any(one.get("tool_calls") for one in messages):
        raise InvalidField("tool_calls", "...", "this model's chat template cannot show tool calls")
    filled = template.with_messages((one["role"], one["content"]) for one in messages)
    pieces: list[str | int] = list(template.system_prefix_token_ids or ())
    for piece in filled.prompt_pieces(add_generation_prompt=True):
        pieces += tokenizer.split_control(piece.text) if piece.from_template else [piece.text]
    return pieces


def _with_tools(template: Conversation, tools: Sequence[GivenTool]) -> Conversation:
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
    """Neighbouring strings joined, because a token may begin in one and end in the next."""
    joined: list[str | int] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece != "":
            joined.append(piece)
    return joined
