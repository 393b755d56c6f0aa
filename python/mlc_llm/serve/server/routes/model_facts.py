"""Finds what is to be said of a model in its files."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.models.spec import ModelSpec
from mlc_llm.serve.echo_model import is_echo
from mlc_llm.serve.ollama.model_facts import ModelFacts
from mlc_llm.serve.openai.model import ChatModel
from mlc_llm.serve.openai.tools.families import think_tags_of, writes_channels
from mlc_llm.serve.opening.bundle import ModelBundle
from mlc_llm.support.content import content_of
from mlc_llm.support.model_source import resolve_model

SETTINGS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "max_tokens": "num_predict",
}
"""Defaults of a model that Ollama has names for."""


def facts_of(bundle: ModelBundle, model: ChatModel) -> ModelFacts:
    """It may take seconds: the hash of large files is computed, unless the cache has it.

    Raises OSError if the files are gone.
    """
    found = NO_FILES if bundle.files is None else _of_files(bundle.files)
    return replace(
        found,
        context=model.context,
        template=_template(model),
        settings=_settings(model),
        capabilities=_capabilities(model),
    )


def facts_of_closed(source: str | None) -> ModelFacts:
    """What is known of a model that is not open. source: see `open_model`."""
    if is_echo(source):
        return NO_FILES
    path = resolve_model(source).path
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    states = [one.stat() for one in files]
    modified = max((one.st_mtime for one in states), default=0.0)
    size = sum(one.st_size for one in states)
    return replace(NO_FILES, format=_format(path), num_bytes=size, modified_at=_written(modified))


def _format(path: Path) -> str:
    return "gguf" if path.suffix == ".gguf" else "folder"


def _of_files(files: ModelFiles) -> ModelFacts:
    spec, states = files.plan().spec, [state for _, state in files.opened]
    counts: Counter[str] = Counter()
    for tensor in files.tensors.values():
        counts[tensor.kind] += math.prod(tensor.shape)
    return ModelFacts(
        format=_format(files.path),
        family=spec.architecture,
        parameters=counts.total(),
        tensor_type=files.quantization or counts.most_common(1)[0][0],
        num_bytes=sum(state.st_size for state in states),
        digest=_digest(files),
        modified_at=_written(max(state.st_mtime for state in states)),
        context=0,
        info=_sizes(spec),
    )


def _digest(files: ModelFiles) -> str:
    """Of one file, its hash; of several, the hash of their hashes."""
    hashes = [content_of(path, files.path.absolute().name).hash for path, _ in files.opened]
    return hashes[0] if len(hashes) == 1 else sha256("".join(hashes).encode()).hexdigest()


def _sizes(spec: ModelSpec) -> dict[str, object]:
    name, attention = spec.architecture, next(iter(spec.attention_layers.values()), None)
    heads = {
        f"{name}.attention.head_count": 0 if attention is None else attention.heads,
        f"{name}.attention.head_count_kv": 0 if attention is None else attention.kv_heads,
    }
    return {
        f"{name}.block_count": len(spec.layers),
        f"{name}.embedding_length": spec.hidden,
        f"{name}.feed_forward_length": spec.layers[0].feed_forward.width,
        **heads,
        f"{name}.vocab_size": spec.vocab,
    }


def _template(model: ChatModel) -> str:
    return model.template.source if isinstance(model.template, ChatTemplate) else ""


def _capabilities(model: ChatModel) -> list[str]:
    """What the template has a place for, or that it writes nothing."""
    if model.is_encoder:
        return ["embedding"]
    if not model.writes:
        return []
    other = model.template.tool_use if isinstance(model.template, ChatTemplate) else None
    source = _template(model) + ("" if other is None else other.source)
    thinks = think_tags_of(model.template) is not None or writes_channels(model.template)
    known = {
        "tools": "tools" in source,
        "thinking": thinks or "enable_thinking" in source,
        "vision": bool(model.images),
    }
    return ["completion", *(name for name, can in known.items() if can)]


def _settings(model: ChatModel) -> str:
    given = model.defaults.given
    return "\n".join(f"{SETTINGS[name]} {given[name]}" for name in SETTINGS if name in given)


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


NO_FILES = ModelFacts("", "", 0, "", 0, "", _written(0), 0)
"""Of the engine without a model, and of a model before it is open."""
