"""What Ollama's API says of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta, timezone

from mlc_llm.record import record

MOST_S = 100 * 365 * 24 * 3600
FOREVER = "9999-12-31T23:59:59Z"
"""When a model that stays is forgotten."""


@record()
class ModelFacts:
    """A model's files, and what is in them."""

    format: str
    """Such as gguf."""
    family: str
    """The architecture."""
    parameters: int
    tensor_type: str
    """Of most of its weights."""
    num_bytes: int
    """Of all its files."""
    digest: str
    """SHA-256 of their bytes, hexadecimal."""
    modified_at: str
    context: int
    """Tokens of a prompt and its answer together."""
    info: Mapping[str, object] = field(default_factory=dict)
    """More of its sizes, by the names of GGUF."""
    template: str = ""
    settings: str = ""
    """Its defaults, one a line."""
    capabilities: Sequence[str] = ("completion",)

    @property
    def details(self) -> dict[str, object]:
        """A short description."""
        return {
            "parent_model": "",
            "format": self.format,
            "family": self.family,
            "families": [self.family],
            "parameter_size": shortened(self.parameters),
            "quantization_level": self.tensor_type,
        }

    def listed(self, name: str) -> dict[str, object]:
        """The entry of a list of models."""
        return {
            "name": name,
            "model": name,
            "modified_at": self.modified_at,
            "size": self.num_bytes,
            "digest": self.digest,
            "details": self.details,
        }

    def loaded(self, name: str, left_s: float | None) -> dict[str, object]:
        """The entry of a list of models that are in memory. left_s: seconds for which it stays
        there if nobody asks for it; None: for good."""
        entry = {key: value for key, value in self.listed(name).items() if key != "modified_at"}
        end = {"expires_at": _after(left_s), "size_vram": 0, "context_length": self.context}
        return {**entry, **end}

    def shown(self, name: str) -> dict[str, object]:
        """All that is known."""
        return {
            "license": "",
            "modelfile": f"FROM {name}\n",
            "parameters": self.settings,
            "template": self.template,
            "details": self.details,
            "model_info": {
                "general.architecture": self.family,
                "general.parameter_count": self.parameters,
                f"{self.family}.context_length": self.context,
                **self.info,
            },
            "capabilities": list(self.capabilities),
            "modified_at": self.modified_at,
        }


def _after(seconds: float | None) -> str:
    """The time of day in so many seconds."""
    if seconds is None or seconds > MOST_S:
        return FOREVER
    end = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    return end.isoformat().replace("+00:00", "Z")


def shortened(number: int) -> str:
    """134515008 as 134.52M."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.4g}{letter}"
    return str(number)
