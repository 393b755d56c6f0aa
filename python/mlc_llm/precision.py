"""How exactly a model is computed."""

from __future__ import annotations

from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["exact", "fast-prompts", "fast"]
"""`exact`: activations have 16 bits. `fast-prompts`: those of prompts have 8 where that costs the
least (with AMX they are bfloat16); answers are computed as in `exact`. `fast`: all of them have 8,
on a CPU but for what becomes keys and values (with AMX those of layers are bfloat16). The bits of a
token never depend on the other tokens of a step."""
PRECISIONS: tuple[Precision, ...] = ("exact", "fast-prompts", "fast")
"""The most exact first."""
