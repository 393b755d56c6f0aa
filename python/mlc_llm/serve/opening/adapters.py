"""LoRA adapters of an engine: which room they get, and what is read of their files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.runtime.batch import AdapterParts
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.opening.bundle import ModelBundle

if TYPE_CHECKING:
    from mlc_llm.loader.lora import LoraAdapter

USUAL_RANK = 16
"""Room for adapters that are loaded later, if nobody says more."""


def with_adapter_room(config: EngineConfig) -> EngineConfig:
    """The config with the number and the rank of adapters that it leaves open. Reads the headers of
    the adapters. Raises UserError with the name of the adapter at fault."""
    count = len(config.adapters) if config.max_adapters is None else config.max_adapters
    if not count:
        return config
    opened = {name: _opened(name, source) for name, source in config.adapters.items()}
    ranks = [one.rank for one in opened.values()]
    config = replace(
        config,
        max_adapters=count,
        max_adapter_rank=config.max_adapter_rank or max(ranks, default=USUAL_RANK),
    )
    for name, one in opened.items():
        _check_rank(name, one, config)
    return config


def adapters_of(config: EngineConfig, bundle: ModelBundle) -> dict[str, AdapterParts]:
    """What each adapter of a config adds to the model. config: of `with_adapter_room`. Raises
    UserError with the name of the adapter at fault."""
    return {name: adapter(name, path, config, bundle) for name, path in config.adapters.items()}


def adapter(name: str, source: str, config: EngineConfig, bundle: ModelBundle) -> AdapterParts:
    """What an adapter adds to the model. Raises UserError with its name."""
    from mlc_llm.model_files.adapters import changes_of, parts_of

    files = bundle.files
    if not config.max_adapters or files is None:
        words = "this engine takes no adapters: it was opened without adapters and max_adapters"
        raise InvalidField("adapter", name, words)
    opened = _opened(name, source)
    _check_rank(name, opened, config)
    try:
        return parts_of(files.plan(), changes_of(files, opened))
    except UserError as error:
        raise _named(name, error) from None


def _opened(name: str, source: str) -> LoraAdapter:
    from mlc_llm.model_files.adapters import open_adapter

    try:
        return open_adapter(source)
    except UserError as error:
        raise _named(name, error) from None


def _check_rank(name: str, adapter: LoraAdapter, config: EngineConfig) -> None:
    most = config.max_adapter_rank
    if most is not None and adapter.rank > most:
        words = f"adapter {name!r} ({adapter.path}) has rank {adapter.rank}"
        raise UserError(f"{words}; the engine has room for max_adapter_rank = {most}")


def _named(name: str, error: UserError) -> UserError:
    return UserError(f"adapter {name!r}: {error}")
