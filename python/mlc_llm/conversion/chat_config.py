"""mlc-chat-config.json: how a model is built, tokenised, prompted and sampled by default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from mlc_llm.conversation_template.registry import ConvTemplateRegistry
from mlc_llm.conversion.config_of_gguf import config_of
from mlc_llm.conversion.tokenizer_files import write_tokenizer
from mlc_llm.errors import InvalidField, UnsupportedModel, UserError
from mlc_llm.json_file import read_json_object
from mlc_llm.model_files import sampling
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.folder_texts import token_ids
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.model_files.mlc import MLCModel, config_json
from mlc_llm.models.registry import architecture_of
from mlc_llm.protocol.json_value import JsonValue
from mlc_llm.protocol.mlc_chat_config import MLCChatConfig
from mlc_llm.quantization.names import FOLDERS
from mlc_llm.tokenizers import Tokenizer

FILE = "mlc-chat-config.json"
MAX_JSON_BYTES = 16 << 20
PREFILL_CHUNK = 2048
AUTO, PLAIN = "auto", "LM"
_MARKS = {
    "<|im_start|>": "chatml",
    "<|start_header_id|>": "llama-3",
    "<start_of_turn>": "gemma3_instruction",
    "[INST]": "mistral_default",
    "<|assistant|>": "phi-3",
}
"""What a chat template has in it -> MLC LLM's template of that kind."""
_SAMPLING = ("temperature", "top_p", "repetition_penalty")
Overrides = Mapping[str, int]


def write_chat_config(
    files: ModelFiles,
    quantization: str,
    output: Path,
    template: str | None,
    overrides: Overrides,
) -> None:
    """Write mlc-chat-config.json and the tokenizer's files.

    If the model's folder has such a file, its settings are kept. template: the name of a chat
    template, which is then used instead of the model's own; "auto": one like the model's own;
    None: the one of the folder's file, else "auto". overrides: sizes such as `context_window_size`,
    by their names in the file. Raises InvalidField, UnsupportedModel, ModelFileError, OSError.
    """
    model, stated = model_config(files), _stated(files)
    plan, tokenizer = files.plan(), files.tokenizer()
    sizes: dict[str, JsonValue] = {**_sizes(files, stated), **overrides}
    config: dict[str, JsonValue] = {
        "version": "0.1.0",
        "model_type": str(model["model_type"]),
        "quantization": quantization,
        "model_config": {**model, **sizes},
        "vocab_size": plan.spec.vocab,
        "active_vocab_size": min(tokenizer.vocab_size, plan.spec.vocab),
        **{name: value for name, value in sizes.items() if name != "max_batch_size"},
        "bos_token_id": -1 if tokenizer.bos_token_id is None else tokenizer.bos_token_id,
        "eos_token_id": _ends(files, tokenizer, stated),
        **_template(files, tokenizer, stated, template),
    }
    config["tokenizer_files"] = list(write_tokenizer(files, output))
    kept = {**_sampling(files), **stated}
    config.update((name, value) for name, value in kept.items() if name not in config)
    MLCChatConfig.parse(config)
    (output / FILE).write_text(json.dumps(config, indent=2), encoding="utf-8")


def _stated(files: ModelFiles) -> dict[str, JsonValue]:
    """What the file of the model's folder says; nothing if there is none."""
    if not files.path.is_dir():
        return {}
    found = read_json_object(files.path / FILE, MAX_JSON_BYTES, may_be_missing=True)
    return {name: value for name, value in found.items() if value is not None}


def _sizes(files: ModelFiles, stated: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Those that the folder's file states; the others from the model, and as MLC LLM has them."""
    usual: dict[str, JsonValue] = {
        "context_window_size": files.context_window,
        "sliding_window_size": -1,
        "prefill_chunk_size": min(PREFILL_CHUNK, files.context_window),
        "attention_sink_size": -1,
        "tensor_parallel_shards": 1,
        "pipeline_parallel_stages": 1,
        "max_batch_size": 128,
    }
    inner = stated.get("model_config")
    if isinstance(inner, dict):  # the only place of this one
        usual["max_batch_size"] = inner.get("max_batch_size") or 128
    return {name: stated.get(name, value) for name, value in usual.items()}


def _ends(files: ModelFiles, tokenizer: Tokenizer, stated: Mapping[str, JsonValue]) -> JsonValue:
    """End-of-text tokens from all places that name them. -1 in the file means none."""
    own = token_ids(stated.get("eos_token_id"))
    ids = {*tokenizer.eos_token_ids, *files.stop_token_ids, *own}
    return cast(JsonValue, sorted(one for one in ids if one >= 0))


def model_config(files: ModelFiles) -> dict[str, JsonValue]:
    """What a config.json says of the model. Raises UnsupportedModel."""
    if isinstance(files, HuggingFaceModel):
        stated = dict(cast("Mapping[str, JsonValue]", files.folder.config))
        stated.pop("quantization_config", None)  # of the files that were read
        return {"model_type": architecture_of(stated).model_type, **stated}
    if isinstance(files, GGUFModel):
        return config_of(files.plan().spec, files.tensors)
    if isinstance(files, MLCModel):
        return config_json(files.path / FILE, files.chat_config)
    raise UnsupportedModel(f"{files.path}: nothing is converted from such files")


def check_template(name: str | None, quantization: str) -> None:
    """Raises InvalidField for a template that is not known, UserError for one that the files of
    this quantization have no place for."""
    if name in (None, AUTO):
        return
    if ConvTemplateRegistry.get_conv_template(name) is None:
        known = ", ".join([AUTO, *ConvTemplateRegistry.names()])
        raise InvalidField("conv_template", name, f"one of {known}")
    if quantization not in FOLDERS:
        raise UserError(
            f"a .gguf file ({quantization}) keeps the model's own chat template; "
            f"leave --conv-template {name} out"
        )


def _template(
    files: ModelFiles, tokenizer: Tokenizer, stated: Mapping[str, JsonValue], name: str | None
) -> dict[str, JsonValue]:
    """The fields that say which template is used; none, if the folder's own ones are kept."""
    if name is None and "conv_template" in stated:
        return {}
    prefer = name not in (None, AUTO)
    if name is None or not prefer:
        found = files.chat_template(tokenizer)
        if found is None and "conv_template" in stated:
            return {}
        text = "" if found is None else found.source
        name = next((kind for mark, kind in _MARKS.items() if mark in text), PLAIN)
    template = ConvTemplateRegistry.get_conv_template(name)
    assert template is not None
    plain = cast(JsonValue, template.model_dump(mode="json", exclude={"messages"}))
    return {"conv_template": plain, "prefer_conv_template": prefer}


def _sampling(files: ModelFiles) -> dict[str, JsonValue]:
    """The defaults of a .gguf file, or of a folder's generation_config.json."""
    if isinstance(files, GGUFModel):
        stated = sampling.gguf_sampling(files.file.metadata)
    else:
        path = files.path / sampling.FILE
        stated = sampling.folder_sampling(
            read_json_object(path, MAX_JSON_BYTES, may_be_missing=True)
        )
    return {name: cast(JsonValue, stated[name]) for name in _SAMPLING if name in stated}
