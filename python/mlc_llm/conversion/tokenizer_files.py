"""The files of a model's tokenizer, for a folder of MLC LLM: copied, or made of GGUF metadata."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.folder_texts import DEFAULT, TOOL_TEMPLATE, TOOL_USE
from mlc_llm.model_files.gguf import TEMPLATE_KEYS, GGUFModel
from mlc_llm.protocol.json_value import JsonValue
from mlc_llm.tokenizers.from_gguf import tokenizer_json

COPIED = (
    "tokenizer.model", "tokenizer.json", "tekken.json", "vocab.json", "merges.txt",
    "added_tokens.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "chat_template.json", TOOL_TEMPLATE, "generation_config.json",
)  # fmt: skip
"""The files of a Hugging Face folder that are copied."""


def write_tokenizer(files: ModelFiles, output: Path) -> list[str]:
    """Write the tokenizer's files into a folder. Returns their names. Raises UnsupportedModel,
    ModelFileError, OSError."""
    if isinstance(files, GGUFModel) and "tokenizer.ggml.model" in files.file.metadata:
        return _of_gguf(files.file, output)
    folder = files.path if files.path.is_dir() else files.path.parent
    names = [name for name in COPIED if (folder / name).is_file()]
    for name in names:
        (output / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(folder / name, output / name)
    return names


def _of_gguf(file: GGUFFile, output: Path) -> list[str]:
    texts = {
        "tokenizer.json": tokenizer_json(file.metadata),
        "tokenizer_config.json": _config(file),
    }
    for name, text in texts.items():
        (output / name).write_text(text, encoding="utf-8")
    return list(texts)


def _config(file: GGUFFile) -> str:
    """tokenizer_config.json: names of tokens, and the chat template."""
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    config: dict[str, JsonValue] = {}
    for name in ("bos", "eos", "unknown", "padding"):
        token = file.get_int(f"tokenizer.ggml.{name}_token_id", None)
        if token is not None and 0 <= token < len(tokens):
            short = {"unknown": "unk", "padding": "pad"}.get(name, name)
            config[f"{short}_token"] = str(tokens[token])
    adds = file.metadata.get("tokenizer.ggml.add_bos_token")
    if isinstance(adds, bool):
        config["add_bos_token"] = adds
    texts = {name: file.get_str(key, None) for name, key in TEMPLATE_KEYS.items()}
    if texts[TOOL_USE] is not None:
        config["chat_template"] = [
            {"name": name, "template": text} for name, text in texts.items() if text is not None
        ]
    elif texts[DEFAULT] is not None:
        config["chat_template"] = texts[DEFAULT]
    return json.dumps(config, indent=2)
