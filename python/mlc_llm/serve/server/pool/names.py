"""Which models a server has, and what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlc_llm.errors import InvalidField
from mlc_llm.serve.echo_model import MOCK_ECHO, is_echo
from mlc_llm.serve.server.pool.registry import DEFAULT_NAME
from mlc_llm.serve.server.pool.slot import ModelSlot
from mlc_llm.support.model_source import resolve_model


def slots_of(models: Sequence[str], served_names: Sequence[str]) -> list[ModelSlot]:
    """A slot for each model; without one, for the default model. Models that have to be fetched
    are fetched now.

    models: files, folders or addresses, or NAME=MODEL. served_names: all of the only model, or one
    for each of several. Raises `InvalidField` for names that are used twice, and what
    `resolve_model` raises.
    """
    named = [_split(one) for one in models] or [(None, None)]
    if len(named) == 1 and served_names:
        names = [tuple(dict.fromkeys(served_names))]
    elif served_names and len(served_names) != len(named):
        words = f"there are {len(named)} models: give as many names, or NAME=MODEL"
        raise InvalidField("served_model_name", list(served_names), words)
    else:
        given: list[str | None] = [*served_names] or [name for name, _ in named]
        pairs = zip(given, named, strict=True)
        names = [(name or _own_name(model),) for name, (_, model) in pairs]
    _refuse_equal([one for several in names for one in several])
    for _, model in named:
        _own_name(model)  # its files are there
    return [ModelSlot(own, model) for own, (_, model) in zip(names, named, strict=True)]


def _split(text: str) -> tuple[str | None, str | None]:
    """The name and the model of NAME=MODEL; no name for a model alone."""
    name, mark, model = text.partition("=")
    if not mark or "/" in name or not name or Path(text).exists():
        return None, text
    return name, model


def _own_name(model: str | None) -> str:
    return MOCK_ECHO if is_echo(model) else resolve_model(model).name


def _refuse_equal(names: Sequence[str]) -> None:
    for name in names:
        if not name.strip() or name == DEFAULT_NAME:
            raise InvalidField("served_model_name", name, "another name is needed")
        if names.count(name) > 1:
            words = "two models have this name; give each its own: NAME=MODEL"
            raise InvalidField("model", name, words)
