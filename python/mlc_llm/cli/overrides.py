"""`--overrides`: any field of `EngineConfig`, for those that have no flag."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.protocol import checks
from mlc_llm.protocol.json_text import parse_json_object
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.config_fields import RULES

OTHER_NAMES = {
    "max_total_seq_length": "max_total_sequence_length",
    "context_window_size": "max_single_sequence_length",
}
"""MLC LLM's names in this flag."""
FLAGS = {
    name: f"--overrides {name}"
    for name in (
        "max_num_sequence", "prefill_chunk_size", "max_total_sequence_length",
        "gpu_memory_utilization",
    )
}  # fmt: skip
"""Fields that errors about memory name -> how they are set: no other flag does."""


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the flag."""
    parser.add_argument(
        "--overrides",
        metavar="FIELDS",
        help="more fields of EngineConfig: 'max_num_sequence=8;prefill_chunk_size=256', or a JSON "
        "object",
    )


def applied(config: EngineConfig, text: str | None) -> EngineConfig:
    """The config with the fields of `text`.

    Raises `UserError` for a text that cannot be read, an unknown field, or one that a flag has set
    to another value.
    """
    if text is None:
        return config
    given = {OTHER_NAMES.get(name, name): value for name, value in _fields(text).items()}
    wanted = asdict(EngineConfig.from_mapping(given))
    unset, own = asdict(EngineConfig()), asdict(config)
    for name in given:
        if name != "mode" and own[name] not in (unset[name], wanted[name]):
            raise UserError(
                f"--overrides: {name} = {wanted[name]!r}, but a flag says {own[name]!r}; "
                "leave one of the two out"
            )
    return EngineConfig.from_mapping({**own, **{name: wanted[name] for name in given}})


@contextmanager
def naming(text: str | None) -> Iterator[None]:
    """Turn an error about a field of `text` into a `UserError` about the flag. Raises `UserError`
    for a text that cannot be read, or an unknown field."""
    written = {OTHER_NAMES.get(name, name): name for name in _fields(text or "")}
    try:
        yield
    except InvalidField as error:
        field = error.field.partition(".")[0]
        if field not in written:
            raise
        raise UserError(f"--overrides: {written[field]}{str(error)[len(field) :]}") from error


def _fields(text: str) -> Mapping[str, object]:
    """The fields by the names that the user gives. Raises `UserError`."""
    written = text.strip()
    fields = parse_json_object(written, "--overrides") if written[:1] == "{" else _pairs(written)
    try:
        for name, value in fields.items():
            checks.known_field(name, value, [*RULES, *OTHER_NAMES])
    except InvalidField as error:
        raise UserError(f"--overrides: {error}") from error
    return fields


def _pairs(text: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"--overrides: {part!r} should be NAME=VALUE")
        found[name.strip()] = _value(value.strip())
    return found


def _value(word: str) -> object:
    """A number, true, false or null; else the word itself."""
    try:
        return json.loads(word)
    except ValueError:
        return word
