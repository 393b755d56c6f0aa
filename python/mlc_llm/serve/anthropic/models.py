"""Served models in the shape of Anthropic's API (docs.anthropic.com, "List Models")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.openai_api_protocol import ModelResponse

VERSION_HEADER = "anthropic-version"
"""A request that has it wants Anthropic's shapes."""
PAGE, MOST = 20, 1000
"""Models of an answer where the request does not say it, and at most."""


def model_body(model: ModelResponse) -> dict[str, object]:
    """One model."""
    created = datetime.fromtimestamp(model.created, timezone.utc)
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.max_input_tokens,
        "max_tokens": model.max_output_tokens,
    }


def page_body(models: Sequence[ModelResponse], query: Mapping[str, str]) -> dict[str, object]:
    """A page of the list. Raises `InvalidField` for a query that names no page."""
    names = [one.id for one in models]
    limit, before, after = query.get("limit", str(PAGE)), "before_id" in query, "after_id" in query
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= MOST:
        raise InvalidField("limit", limit, f"a number from 1 to {MOST}")
    start = _place("after_id", query["after_id"], names) + 1 if after else 0
    end = _place("before_id", query["before_id"], names) if before else len(names)
    found = models[start:end]
    page = found[-int(limit) :] if before and not after else found[: int(limit)]
    return {
        "data": [model_body(one) for one in page],
        "has_more": len(page) < len(found),
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
    }


def _place(field: str, name: str, names: Sequence[str]) -> int:
    if name not in names:
        raise InvalidField(field, name, "the name of a model in this list")
    return names.index(name)
