"""Prompts in the forms that engines take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlc_llm.protocol import checks
from mlc_llm.serve.data import Data, TextData, TokenData


def convert_prompts_to_data(prompts: Any) -> list[list[Data]]:
    """Prompts in any form of `SyncMLCEngine.generate` as one list of `Data` each.

    str · list[str] · list[int] · list[list[int]] · list[list[Data]]. An empty list has no prompt.
    Raises `InvalidField` that names the prompt which is of another kind.
    """
    if isinstance(prompts, (str, Data)):
        return [_one_prompt("prompts", prompts)]
    if not isinstance(prompts, (list, tuple)):
        raise checks.wrong_type("prompts", prompts, "should be a string or a list")
    if not prompts:
        return []
    if all(isinstance(item, int) for item in prompts):
        return [_one_prompt("prompts", prompts)]
    return [_one_prompt(f"prompts[{i}]", prompt) for i, prompt in enumerate(prompts)]


def _one_prompt(field: str, prompt: object) -> list[Data]:
    if isinstance(prompt, str):
        return [TextData(prompt)]
    if isinstance(prompt, Data):
        return [prompt]
    if isinstance(prompt, (list, tuple)):
        return _items(field, prompt)
    raise checks.wrong_type(field, prompt, "should be a string, token ids or a list of Data")


def _items(field: str, prompt: Sequence[object]) -> list[Data]:
    data = [item for item in prompt if isinstance(item, Data)]
    if not data:
        ids = [item for item in prompt if isinstance(item, int)]
        if len(ids) == len(prompt):
            return [TokenData(ids)]
    if not data or len(data) != len(prompt):
        raise checks.refuse(field, prompt, "should hold token ids only, or Data only")
    return data
