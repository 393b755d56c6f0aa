"""What a model's files say of sampling, where nobody asks for anything else.

Formats: generation_config.json of Transformers, and the keys `general.sampling.*` that llama.cpp's
converter makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping

FILE = "generation_config.json"
_PREFIX = "general.sampling."
_ENDS = {
    "temperature": "temp", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}  # fmt: skip
"""The fields of generation_config.json that mean the same here, with the ends of their keys. Other
keys are of samplers that no engine here has."""


def folder_sampling(generation: Mapping[str, object]) -> dict[str, object]:
    """The fields of a generation_config.json, unchecked."""
    found = {name: generation[name] for name in _ENDS if name in generation}
    return {**found, "temperature": 0.0} if generation.get("do_sample") is False else found


def gguf_sampling(metadata: Mapping[str, object]) -> dict[str, object]:
    """The same of a GGUF file. Numbers have the 7 digits that float32 keeps; llama.cpp's -1 stands
    for all tokens."""
    stated = {name: metadata.get(_PREFIX + end) for name, end in _ENDS.items()}
    found = {name: value for name, value in stated.items() if value is not None}
    for name, value in found.items():
        if isinstance(value, float):
            found[name] = float(f"{value:.7g}")
    return {**found, "top_k": 0} if found.get("top_k") == -1 else found


def sampling_keys(generation: Mapping[str, object]) -> dict[str, int | float]:
    """The keys of a new GGUF file. What is no such number is left out."""
    made: dict[str, int | float] = {}
    for name, value in folder_sampling(generation).items():
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if 0 <= value < 2**31:
            made[_PREFIX + _ENDS[name]] = int(value) if name == "top_k" else float(value)
    return made
