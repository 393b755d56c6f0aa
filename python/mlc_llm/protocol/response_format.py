"""What shape an answer must have: free text, any JSON, or JSON that fits a schema."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

RESPONSE_FORMAT_TYPES = ("text", "json_object", "function")
MAX_SCHEMA_CHARS = 256 * 1024


class RequestResponseFormat(BaseModel):
    """As the engine reads it: `schema` is the text of a JSON schema and needs `json_object`.

    `function` marks an answer that is read as a tool call; no grammar belongs to it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["text", "json_object", "function"] = "text"
    json_schema: str | None = Field(default=None, alias="schema")

    @property
    def is_free_text(self) -> bool:
        """True when the engine needs no grammar for it."""
        return self.type != "json_object"
