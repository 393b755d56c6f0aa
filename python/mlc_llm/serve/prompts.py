"""Prompts in the forms that engines take."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from mlc_llm.protocol import checks
from mlc_llm.serve.data import MAX_PROMPT_TOKENS, Data, TextData, TokenData


def convert_prompts_to_data(prompts: object, *, special: bool = False) -> list[list[Data]]:
    """Prompts in any form that `SyncMLCEngine.generate` takes; each becomes a list of `Data`.

    The forms: str, list[str], list[int], list[list[int]], list[list[Data]]. An empty list has no
    prompt. special: names of control tokens in strings are control tokens. Raises `InvalidField`
    for a prompt of another kind or an empty one, and for `special` if no prompt is a string.
    """
    checks.boolean("special", special)
    found = [_one_prompt(field, prompt, special) for field, prompt in _named(prompts)]
    items = (item for prompt in found for item in prompt)
    if special and found and not any(isinstance(item, TextData) and item.special for item in items):
        raise checks.refuse("special", special, "it is for prompts that are strings; none is one")
    return found


def data_of_inputs(inputs: object) -> list[Data]:
    """The inputs of `create_request` as a list: one `Data` or an array of them; a string is a text.

    Raises `InvalidField` for anything else. The items are not checked; `Request` does that.
    """
    if isinstance(inputs, (str, Data)):
        inputs = [inputs]
    if not isinstance(inputs, Sequence) or isinstance(inputs, (bytes, bytearray)):
        raise checks.wrong_type("inputs", inputs, "should be a Data or a list of Data")
    return [TextData(item) if isinstance(item, str) else item for item in inputs]


def _named(prompts: object) -> list[tuple[str, object]]:
    """Each prompt with the name that it has in an error."""
    if isinstance(prompts, (str, Data)):
        return [("prompts", prompts)]
    if not isinstance(prompts, (list, tuple)):
        raise checks.wrong_type("prompts", prompts, "should be a string or a list")
    if prompts and all(isinstance(item, Integral) for item in prompts):
        return [("prompts", prompts)]
    return [(f"prompts[{i}]", prompt) for i, prompt in enumerate(prompts)]


def _one_prompt(field: str, prompt: object, special: bool) -> list[Data]:
    if isinstance(prompt, str):
        return [TextData(prompt, special)]
    if isinstance(prompt, Data):
        return [prompt]
    if isinstance(prompt, (list, tuple)):
        return _items(field, prompt)
    raise checks.wrong_type(field, prompt, "should be a string, token ids or a list of Data")


def _items(field: str, prompt: Sequence[object]) -> list[Data]:
    if not prompt:
        raise checks.refuse(field, prompt, "a prompt needs at least one token id, or one Data")
    data = [item for item in prompt if isinstance(item, Data)]
    if not data and all(isinstance(item, Integral) for item in prompt):
        return [TokenData(checks.token_ids(field, prompt, MAX_PROMPT_TOKENS))]
    if not data or len(data) != len(prompt):
        raise checks.refuse(field, prompt, "should hold token ids only, or Data only")
    return data
