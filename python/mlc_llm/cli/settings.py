"""The command `/set`: it shows and changes how the next answers of a chat are sampled."""

from __future__ import annotations

from mlc_llm.cli.options import SETTINGS
from mlc_llm.errors import InvalidField, UserError
from mlc_llm.protocol.checks import nearest
from mlc_llm.protocol.generation_config import GenerationConfig

DEFAULT = "default"
"""This word means the value at the start of the chat."""


SERVERS_OWN = "the server's own"


def shown(config: GenerationConfig, *, remote: bool = False) -> str:
    """One line for each setting. remote: a server has the values that are not given."""
    width = max(len(name) for name in SETTINGS)
    lines = [f"{name:<{width}}  {_value(config, name, remote)}" for name in SETTINGS]
    return "\n".join(lines)


def field_of(name: str) -> str:
    """The setting that is named so: `top_p`, `top-p` or `--top-p`. Raises `UserError`."""
    field = name.lstrip("-").replace("-", "_")
    if field in SETTINGS:
        return field
    raise UserError(
        f"there is no setting {name!r}; did you mean {nearest(field, SETTINGS)}? /set lists them"
    )


def changed(
    config: GenerationConfig,
    start: GenerationConfig,
    field: str,
    word: str,
    *,
    remote: bool = False,
) -> tuple[GenerationConfig, str]:
    """A config with `word` as the value of one setting, and a text that says so.

    `start` has the values for the word "default". Raises `UserError` that names the setting.
    """
    given = config.given
    given.pop(field, None)
    if word != DEFAULT:
        given[field] = _number(field, word)
    elif field in start.given:
        given[field] = start.given[field]
    made = GenerationConfig.of(given)
    return made, f"{field} is now {_value(made, field, remote)}"


def _value(config: GenerationConfig, name: str, remote: bool) -> str:
    if remote and name not in config.given:
        return SERVERS_OWN
    value = getattr(config, name)
    return "drawn at random" if value is None else str(value)


def _number(field: str, word: str) -> int | float:
    kind = SETTINGS[field].kind
    try:
        return int(word) if kind is int else float(word)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise InvalidField(field, word, f"should be {what}, or {DEFAULT!r}") from None
