"""A name for everything that decides an engine's answers: build, weights and settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from mlc_llm.compiler.keys import source_hash
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.opening.bundle import ModelBundle
from mlc_llm.serve.opening.runner import AnyRunner
from mlc_llm.support.distributions import version

SETTINGS = (
    "attention_sink_size",
    "kv_cache_dtype",
    "max_single_sequence_length",
    "precision",
    "sliding_window_size",
)
"""Fields of the config that can change a text. All others change when it comes."""
LIBRARIES = ("jinja2", "llguidance", "tokenizers")
"""What makes tokens of text, and says which are allowed."""
TEXT_FILES = (
    "added_tokens.json",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "mlc-chat-config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
"""Small files of a model that say how text becomes tokens, and what its defaults are."""


def fingerprint(bundle: ModelBundle, config: EngineConfig, runners: Iterable[AnyRunner]) -> str:
    """`fp_` and 16 hexadecimal digits. Two engines with the same one give the same text for the
    same request with the same seed. It reads the files of the model that are small."""
    values = {
        "source": source_hash(("",)),
        "libraries": {name: version(name) for name in LIBRARIES},
        "models": [runner.identity for runner in runners],
        "files": _files_of(bundle),
        "defaults": bundle.defaults.asjson(),
        "stop_token_ids": sorted(bundle.stop_token_ids),
        "settings": {name: getattr(config, name) for name in SETTINGS},
    }
    text = json.dumps(values, sort_keys=True)
    return f"fp_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _files_of(bundle: ModelBundle) -> dict[str, str]:
    if bundle.source is None:
        return {}
    path = bundle.source.path
    folder = path if path.is_dir() else path.parent
    found = (folder / name for name in TEXT_FILES)
    return {one.name: _digest(one) for one in found if one.is_file()}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
