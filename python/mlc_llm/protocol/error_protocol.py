"""Errors as protocols show them, and our one-line errors out of pydantic's many-line ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.protocol import checks

ModelT = TypeVar("ModelT", bound=BaseModel)


class ErrorBody(BaseModel):
    """What stands under the `error` key of an OpenAI-shaped error."""

    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """The whole body of an error answer."""

    error: ErrorBody

    @classmethod
    def of(cls, error: Exception, *, code: str | None = None) -> ErrorResponse:
        """The body for an error of ours; `param` is the field's name where one is known."""
        param = error.field if isinstance(error, InvalidField) else None
        kind = "invalid_request_error" if isinstance(error, UserError) else "server_error"
        return cls(error=ErrorBody(message=str(error), type=kind, param=param, code=code))


def validated(model: type[ModelT], value: object, what: str) -> ModelT:
    """`value` (a mapping, or already a `model`) as a `model`.

    Raises `UserError` of one line: the first thing wrong, with the path of the field.
    """
    if isinstance(value, model):
        return value
    if not isinstance(value, Mapping):
        raise checks.wrong_type(what, value, "should be an object")
    try:
        return model.model_validate(dict(value))
    except ValidationError as error:
        raise user_error(error, what) from None


def user_error(error: ValidationError, what: str = "") -> UserError:
    """The first problem of a pydantic error as one of ours."""
    first: Mapping[str, Any] = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return cause
    path = ".".join(str(part) for part in ((what,) if what else ()) + tuple(first["loc"]))
    if first["type"] == "missing":
        key = first["loc"][-1] if first["loc"] else what
        return MissingKey(path, str(key))
    if first["type"] == "extra_forbidden":
        return checks.refuse(path, first["input"], "unknown field")
    words = str(first["msg"])
    if first["type"].endswith("_type") or first["type"].endswith("_parsing"):
        return checks.wrong_type(path, first["input"], words)
    return checks.refuse(path, first["input"], words)


class MissingKey(InvalidField):
    """A required key is absent."""

    def __init__(self, field: str, key: str) -> None:
        super().__init__(field, None, f'key "{key}" not found')
