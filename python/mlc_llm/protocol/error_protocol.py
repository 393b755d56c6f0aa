"""Errors as OpenAI's API writes them, and pydantic's errors as our errors of one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from mlc_llm.errors import ContextLengthExceeded, InvalidField, MissingKey, UserError
from mlc_llm.protocol import checks

ModelT = TypeVar("ModelT", bound=BaseModel)

BadRequestError = UserError
"""The name that programs written for MLC LLM catch."""


class ErrorBody(BaseModel):
    """The value of the key `error` in an error of OpenAI's API."""

    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """The whole body of an error answer."""

    error: ErrorBody

    @classmethod
    def of(cls, error: Exception, *, code: str | None = None) -> ErrorResponse:
        """The body for one of our errors. `param` is the name of the field, if one is known."""
        if isinstance(error, ContextLengthExceeded):
            code = code or "context_length_exceeded"
        param = error.field if isinstance(error, InvalidField) else None
        kind = "invalid_request_error" if isinstance(error, UserError) else "server_error"
        return cls(error=ErrorBody(message=str(error), type=kind, param=param, code=code))


def validated(model: type[ModelT], value: object, what: str = "") -> ModelT:
    """`value` (a mapping, or already a `model`) as a `model`.

    Raises `UserError` of one line: the first mistake, with the path of the field.
    """
    if isinstance(value, model):
        return value
    if not isinstance(value, Mapping):
        raise checks.wrong_type(what or "the request", value, "should be an object")
    try:
        return model.model_validate(dict(value))
    except ValidationError as error:
        raise user_error(error, what) from None


def user_error(error: ValidationError, what: str = "") -> UserError:
    """The first mistake that a pydantic error reports, as one of our errors."""
    first = error.errors(include_url=False)[0]
    place = (what, *first["loc"]) if what else tuple(first["loc"])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InvalidField):
        return _moved(cause, place)
    if isinstance(cause, UserError):
        return cause
    path, kind, words = _path(place), str(first["type"]), str(first["msg"])
    if kind == "missing":
        return MissingKey(path, str(place[-1]))
    if kind == "extra_forbidden":
        return checks.refuse(path, first["input"], "unknown field")
    if kind.endswith(("_type", "_parsing")):
        return checks.wrong_type(path, first["input"], words)
    return checks.refuse(path, first["input"], words)


def _moved(cause: InvalidField, place: tuple[int | str, ...]) -> InvalidField:
    """The same error with the whole path. A check knows only the name of its own field."""
    own = bool(place) and cause.field.startswith(str(place[-1]))
    inside = _path(place[:-1] if own else place)
    path = f"{inside}.{cause.field}" if inside else cause.field
    if isinstance(cause, MissingKey):
        return MissingKey(path, cause.key)
    return checks.refuse(path, cause.value, cause.allowed)


def _path(place: Iterable[int | str]) -> str:
    """("messages", 0, "content") as messages[0].content."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text
