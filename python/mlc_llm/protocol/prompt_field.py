"""A field with one prompt or several: texts or token ids, as OpenAI's API takes them."""

from __future__ import annotations

from collections.abc import Sequence

from mlc_llm.protocol import checks

Prompt = str | list[int]
Prompts = str | list[str] | list[int] | list[list[int]]
"""One or many texts, or one or many lists of token ids."""

MAX_PROMPT_CHARS = 2**26
MAX_PROMPT_TOKENS = 2**24


def checked_prompts(field: str, value: object, most: int) -> object:
    """The value, if it is of type `Prompts` and has at most so many prompts. Raises
    `InvalidField`."""
    if isinstance(value, str):
        return checks.string(field, value, MAX_PROMPT_CHARS)
    if not isinstance(value, (list, tuple)):
        raise checks.wrong_type(field, value, "should be a string or a list")
    if not value:
        raise checks.refuse(field, value, "should not be empty")
    if isinstance(value[0], int):
        return checks.token_ids(field, value, MAX_PROMPT_TOKENS)
    items = checks.listing(field, value, most)
    return [_one_prompt(f"{field}[{i}]", one, value[0]) for i, one in enumerate(items)]


def prompts_of(value: str | Sequence[str | int | list[int]]) -> list[Prompt]:
    """Each prompt of a checked value, in order."""
    if isinstance(value, str):
        return [value]
    ids = [item for item in value if isinstance(item, int)]
    return [ids] if ids else [item for item in value if not isinstance(item, int)]


def _one_prompt(field: str, value: object, first: object) -> Prompt:
    """One prompt of a list. It must be of the same kind as the first."""
    if isinstance(first, str):
        return checks.string(field, value, MAX_PROMPT_CHARS)
    return checks.token_ids(field, value, MAX_PROMPT_TOKENS)
