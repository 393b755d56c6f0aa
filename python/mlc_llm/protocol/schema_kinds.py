"""What the arrays and objects inside a JSON schema are."""

from __future__ import annotations

SCHEMA, NAMES, DATA = range(3)
"""What an array or object holds: (a list of) schemas, a map from names to schemas, or values."""
_KIND_OF = {
    **dict.fromkeys(("const", "default", "enum", "example", "examples"), DATA),
    **dict.fromkeys(
        ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"), NAMES
    ),
}
"""What stands under a keyword of a schema, where that is no schema."""


def kind_of(parent: int, key: str | None) -> int:
    """The kind of what stands under a key. key: None for the items of an array."""
    if key is None or parent is DATA:
        return parent
    return SCHEMA if parent is NAMES else _KIND_OF.get(key, SCHEMA)
