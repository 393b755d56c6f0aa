"""`--overrides`: any field of `EngineConfig`, for those that have no flag."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from mlc_llm.errors import UserError
from mlc_llm.protocol.json_text import parse_json_object
from mlc_llm.serve.config import EngineConfig

OTHER_NAMES = {
    "max_total_seq_length": "max_total_sequence_length",
    "context_window_size": "max_single_sequence_length",
}
"""MLC LLM's names in this flag."""


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
    written = text.strip()
    fields = parse_json_object(written, "--overrides") if written[:1] == "{" else _pairs(written)
    given = {OTHER_NAMES.get(name, name): value for name, value in fields.items()}
    wanted = asdict(EngineConfig.from_mapping(given))
    unset, own = asdict(EngineConfig()), asdict(config)
    for name in given:
        if name != "mode" and own[name] not in (unset[name], wanted[name]):
            raise UserError(
                f"--overrides: {name} = {wanted[name]!r}, but a flag says {own[name]!r}; "
                "leave one of the two out"
            )
    return EngineConfig.from_mapping({**own, **{name: wanted[name] for name in given}})


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
