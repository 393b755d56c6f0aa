"""The OpenAPI file of the server: made of its routes and of the models that check requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from mlc_llm.protocol.error_protocol import ErrorResponse
from mlc_llm.protocol.generation_rules import RANGES
from mlc_llm.serve.server.routes.operations import JSON, OPEN_PATHS, OPERATIONS, Operation, Schema

VERSION = "3.1.0"
REFERENCE = "#/components/schemas/{model}"
AT_LEAST_1: Schema = {"type": "integer", "minimum": 1}
FORMS: dict[tuple[str, str], Schema] = {
    ("", "stop"): {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    ("", "max_tokens"): {"type": "integer", "minimum": 0},
    ("ChatCompletionRequest", "max_tokens"): AT_LEAST_1,
    ("", "max_completion_tokens"): AT_LEAST_1,
}
"""Fields of requests, of one model or of all, that take more, or less, than their type says."""
ERRORS = "The error; its `message` says what is wrong, `param` with which field."
Used = tuple[type[BaseModel], JsonSchemaMode]


def openapi_text(routes: Iterable[tuple[str, str]], title: str, version: str) -> str:
    """The file as JSON. routes: method and path of each, as the application has them."""
    paths: dict[str, dict[str, Any]] = {}
    used: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {
        (ErrorResponse, "serialization"): None
    }
    for method, path in routes:
        shown = re.sub(r":\w+\}", "}", path)
        operation = OPERATIONS.get(_plain(shown), _UNKNOWN)
        used.update(dict.fromkeys(_models(operation)))
        paths.setdefault(shown, {})[method.lower()] = _operation(method, shown, operation)
    _, schemas = models_json_schema(list(used), ref_template=REFERENCE)
    return json.dumps(
        {
            "openapi": VERSION,
            "info": {"title": title, "version": version},
            "security": [{"key": []}, {}],
            "paths": paths,
            "components": {
                "schemas": {name: _as_taken(name, one) for name, one in schemas["$defs"].items()},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


_UNKNOWN = Operation("", {"type": "object"}, {})


def _plain(path: str) -> str:
    return path.removeprefix("/v1")


def _models(operation: Operation) -> Iterator[Used]:
    if isinstance(operation.asks, type):
        yield operation.asks, "validation"
    if isinstance(operation.answers, type):
        yield operation.answers, "serialization"


def _operation(method: str, path: str, operation: Operation) -> Schema:
    found: Schema = {
        "operationId": f"{method.lower()}{re.sub(r'[^a-zA-Z0-9]+', '_', path)}",
        "summary": operation.words,
        "responses": {
            "200": {"description": "The answer.", "content": _answer(operation)},
            "default": {"description": ERRORS, "content": _content(JSON, _error(path))},
        },
    }
    names = re.findall(r"\{(\w+)\}", path)
    if names:
        found["parameters"] = [
            {"name": one, "in": "path", "required": True, "schema": {"type": "string"}}
            for one in names
        ]
    if operation.asks is not None:
        content = _content(JSON, operation.asks)
        found["requestBody"] = {"required": operation.needs_body, "content": content}
    if path in OPEN_PATHS:
        found["security"] = []
    return found


def _error(path: str) -> type[BaseModel] | Schema:
    """Other APIs have errors of other forms."""
    if _plain(path).startswith(("/messages", "/api/")):
        return {"type": "object"}
    return ErrorResponse


def _answer(operation: Operation) -> Schema:
    if operation.answers is None:
        return _content("text/plain", {"type": "string"})
    whole = _content(JSON, operation.answers)
    if operation.streams is None:
        return whole
    return {**whole, **_content(operation.streams, {"type": "string"})}


def _content(media: str, body: type[BaseModel] | Schema) -> Schema:
    if isinstance(body, type):
        return {media: {"schema": {"$ref": REFERENCE.format(model=body.__name__)}}}
    return {media: {"schema": body}}


def _as_taken(model: str, schema: Schema) -> Schema:
    """The schema of a model, with ranges, and with null for every field that has a default."""
    properties = schema.get("properties")
    if properties is None:
        return schema
    needed = schema.get("required", [])
    return {
        **schema,
        "properties": {
            name: one if name in needed else _or_null(_with_range(model, name, one))
            for name, one in properties.items()
        },
    }


def _with_range(model: str, name: str, schema: Schema) -> Schema:
    form = FORMS.get((model, name), FORMS.get(("", name)))
    if form is not None:
        return {**form, **_described(schema)}
    kinds = {schema.get("type"), *(one.get("type") for one in schema.get("anyOf", []))}
    if name not in RANGES or not kinds & {"integer", "number"}:
        return schema
    low, high = RANGES[name]
    inner = [{**one, "minimum": low, "maximum": high} for one in _numbers(schema)]
    return {**_described(schema), "anyOf": inner}


def _described(schema: Schema) -> Schema:
    """What a schema says besides which values it takes."""
    return {key: schema[key] for key in _WORDS if key in schema}


_WORDS = ("title", "default", "description")


def _numbers(schema: Schema) -> Iterator[Schema]:
    for one in schema.get("anyOf", [{"type": schema.get("type")}]):
        if one.get("type") in ("integer", "number"):
            yield one


def _or_null(schema: Schema) -> Schema:
    choices = schema.get("anyOf")
    if schema.get("type") == "null" or {"type": "null"} in (choices or []):
        return schema
    inner = {key: value for key, value in schema.items() if key not in _WORDS}
    return {**_described(schema), "anyOf": [*(choices or [inner]), {"type": "null"}]}
