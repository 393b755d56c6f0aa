"""A model in MLC LLM's folder: mlc-chat-config.json, shards of parameters and a tokenizer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import InvalidField, ModelFileError, UnsupportedModel, UserError
from mlc_llm.json_file import read_json_object
from mlc_llm.loader.huggingface import state_of
from mlc_llm.loader.mlc_shards import MLCParam, MLCShards
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.folder_texts import folder_template, token_ids
from mlc_llm.model_files.mlc_names import HEAD, names_in
from mlc_llm.model_files.mlc_views import KINDS, GroupsView, NumbersView, WordsView
from mlc_llm.model_files.packed_views import AwqView
from mlc_llm.model_files.pooling import folder_pooling
from mlc_llm.model_files.tensor_views import RowsView
from mlc_llm.model_files.unchanged import PlannedFiles
from mlc_llm.models.registry import read_config
from mlc_llm.models.weight_plan import WeightPlan, plan_weights, wanted_tensors
from mlc_llm.protocol.json_value import JsonValue
from mlc_llm.quantization.group_schemes import Scheme
from mlc_llm.quantization.names import AWQ, AWQ_GROUP, FOLDERS, check_name
from mlc_llm.record import record
from mlc_llm.tokenizers import Tokenizer

CHAT_CONFIG = "mlc-chat-config.json"
MAX_JSON_BYTES = 16 << 20
POSITIONS = "position_embd.weight"
TABLES = "token_embd.weight", POSITIONS
"""Rows that tokens and places look up: no other layout, and the latter are read as numbers."""
_OLD_NAMES = {
    "position_embedding_base": "rope_theta",
    "context_window_size": "max_position_embeddings",
    "sliding_window_size": "sliding_window",
}
"""MLC LLM's own names of fields of a config.json."""
_OWN_OLD_NAMES = {
    "gpt2": {"context_window_size": "n_positions"},
    "gpt_neox": {"position_embedding_base": "rotary_emb_base"},
}
"""The same, where Transformers has other names for one model type."""
_LEFT_OVER = "sliding_window", "sliding_window_pattern", "layer_types", "max_position_embeddings"
"""Fields of a config.json that MLC LLM may keep in `kwargs`."""
_MISTRAL_CONTEXT = 32_768
"""Of the Mistral with a window, for which MLC LLM knows no longest text."""
_UNSAID = {
    "gemma": ("hidden_act", "gelu_pytorch_tanh"),
    "gpt2": ("activation_function", "gelu_new"),
    "gpt_neox": ("hidden_act", "gelu"),
}
"""Fields that MLC LLM's models do not say; those of all other model types: `hidden_act`, "silu"."""
Shape = tuple[int, ...]


@record()
class MLCModel(PlannedFiles):
    """See `ModelFiles`."""

    shards: MLCShards
    opened: tuple[tuple[Path, os.stat_result], ...]
    chat_config: Mapping[str, JsonValue]
    scheme: Scheme
    weights: WeightPlan
    tensors: Mapping[str, Tensor]

    @classmethod
    def open(cls, path: Path) -> MLCModel:
        """Raises ModelNotFound, ModelFileError, UnsupportedModel."""
        config = (path / CHAT_CONFIG, state_of(path / CHAT_CONFIG))
        chat = read_json_object(path / CHAT_CONFIG, MAX_JSON_BYTES)
        scheme = _scheme(path / CHAT_CONFIG, str(chat.get("quantization")))
        stated = config_json(path / CHAT_CONFIG, chat)
        shards = MLCShards.open(path)
        if any(name.startswith(f"{HEAD}.") for name in shards.params):  # the config may not say it
            stated["tie_word_embeddings"] = False
        spec = read_config(stated)
        tensors = _Tensors(spec.architecture, wanted_tensors(spec), scheme, shards).named()
        opened = (config, *shards.opened)
        return cls(shards, opened, chat, scheme, plan_weights(spec, tensors), tensors)

    @property
    def path(self) -> Path:
        return self.shards.path

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return token_ids(self.chat_config.get("eos_token_id"))

    @property
    def pooling(self) -> str | None:
        return folder_pooling(self.path)

    def check_sums(self) -> None:
        self.shards.check_sums()

    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.path)

    def chat_template(self, tokenizer: Tokenizer) -> ChatTemplate | None:
        return folder_template(self.path)


def _scheme(path: Path, name: str) -> Scheme:
    """The scheme that a config file names. Raises UnsupportedModel."""
    if name in FOLDERS:
        return FOLDERS[name]
    try:
        check_name(name)
    except InvalidField:
        known = ", ".join(FOLDERS)
        raise UnsupportedModel(
            f"{path}: quantization = {name[:60]!r}; supported are {known}"
        ) from None
    except UserError as error:
        raise UnsupportedModel(f"{path}: {error}") from None
    raise UnsupportedModel(f"{path}: quantization = {name!r} is a type of GGUF files")


def config_json(path: Path, chat: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """`model_config` with the names of a config.json. path: of the file, for errors."""
    stated = chat.get("model_config")
    if not isinstance(stated, dict):
        raise ModelFileError(f"{path}: model_config should be an object")
    inner = stated.get("text_config")
    config = {**stated, **inner} if isinstance(inner, dict) else dict(stated)
    config.setdefault("model_type", chat.get("model_type"))
    if config["model_type"] == "gemma3":  # as MLC LLM calls it
        config["model_type"] = "gemma3_text"
    config.setdefault(*_UNSAID.get(str(config["model_type"]), ("hidden_act", "silu")))
    if not config.get("rope_scaling"):  # MLC LLM writes 0 for none
        config.pop("rope_scaling", None)
    _rename(config)
    return config


def _rename(config: dict[str, JsonValue]) -> None:
    """Add the names of a config.json to a config with MLC LLM's. -1 stands for no limit there."""
    rest = config.get("kwargs")
    if isinstance(rest, dict):
        unset = [name for name in _LEFT_OVER if config.get(name) is None]
        if config.get("sliding_window_size") is not None:  # -1 says that there is none
            unset = [name for name in unset if name != "sliding_window"]
        config.update({name: rest[name] for name in unset if name in rest})
    own = _OWN_OLD_NAMES.get(str(config["model_type"]), {})
    for old, name in {**_OLD_NAMES, **own}.items():
        stated = config.get(old)
        if config.get(name) is None and stated not in (None, -1):
            config[name] = stated
    is_mistral = config["model_type"] == "mistral"
    if "sliding_window_size" in config or (is_mistral and "architectures" not in config):
        config.setdefault("sliding_window", None)  # Transformers has another default
    if is_mistral and config.get("context_window_size") == -1 and config.get("sliding_window"):
        config["max_position_embeddings"] = config.get("max_position_embeddings", _MISTRAL_CONTEXT)


class _Tensors:
    """Looks parameters up, checks their shapes and notes which were used."""

    def __init__(
        self, architecture: str, wanted: Mapping[str, Shape], scheme: Scheme, shards: MLCShards
    ) -> None:
        self._wanted, self._scheme, self._shards = wanted, scheme, shards
        self._names = names_in(architecture, wanted, shards.params)
        self._used: set[str] = set()

    def named(self) -> dict[str, Tensor]:
        """By GGUF's names. Raises ModelFileError, UnsupportedModel, with MLC LLM's names."""
        found = {}
        for name, parts in self._names.items():
            shape = list(self._wanted[parts[0]])
            axis, start = -min(2, len(shape)), 0
            shape[axis] = sum(self._wanted[part][axis] for part in parts)
            for part in parts:
                found[part] = self._tensor(name, part, tuple(shape), start)
                start += self._wanted[part][axis]
        for name in sorted(set(self._shards.params) - self._used):
            raise UnsupportedModel(
                f"parameter {name} is not part of the architecture as it is known here"
            )
        return found

    def _tensor(self, name: str, part: str, shape: Shape, start: int) -> Tensor:
        """Rows of a parameter, from `start`, as the tensor `part`. shape: of all its rows."""
        params, stem = self._shards.params, name.removesuffix(".weight")
        if f"{stem}.q_weight" in params:
            return self._groups(stem, part, shape, start)
        if f"{stem}.qweight" in params:
            return self._awq(stem, part, shape, start)
        if name not in params:
            raise ModelFileError(f"there is no parameter {name}")
        param = params[name]
        self._used.add(name)
        if param.dtype not in KINDS:
            raise ModelFileError(f"parameter {name} is {param.dtype}; it should be numbers")
        self._check(name, param.shape, shape)
        return NumbersView(param, self._wanted[part], start)

    def _groups(self, stem: str, part: str, shape: Shape, start: int) -> Tensor:
        scheme, params = self._scheme, self._shards.params
        names = f"{stem}.q_weight", f"{stem}.q_scale"
        if not scheme.bits or names[1] not in params:
            raise ModelFileError(f"{names[0]} has no place in {scheme.name}, or no scales")
        turned = scheme.transposed and len(shape) == 2 and part not in TABLES
        groups, words = scheme.sizes(shape[-1])
        for name, count, dtype in zip(
            names, (words, groups), ("uint32", scheme.dtype), strict=True
        ):
            param, expected = params[name], (*shape[:-1], count)
            self._used.add(name)
            self._check(name, param.shape, expected[::-1] if turned else expected)
            if param.dtype not in (dtype, "bfloat16" if dtype == "float32" else dtype):
                raise ModelFileError(f"parameter {name} is {param.dtype}; it should be {dtype}")
        one, two = (params[name] for name in names)
        rows, plain = self._wanted[part], part == POSITIONS
        return GroupsView(scheme, one, two, rows, start, transposed=turned, plain=plain)

    def _awq(self, stem: str, part: str, shape: Shape, start: int) -> Tensor:
        if self._scheme is not AWQ or len(shape) != 2:
            raise ModelFileError(f"{stem}.qweight has no place in {self._scheme.name}")
        rows, columns = shape
        groups = columns // AWQ_GROUP
        words, zeros, scales = (
            self._param(f"{stem}.{end}", wanted, dtype)
            for end, wanted, dtype in (
                ("qweight", (columns, rows // 8), "uint32"),
                ("qzeros", (groups, rows // 8), "uint32"),
                ("scales", (groups, rows), "float16"),
            )
        )
        if rows % 8 or columns % AWQ_GROUP:
            raise ModelFileError(f"{stem}.qweight: {list(shape)} is no shape of {AWQ.name}")
        whole = AwqView(
            WordsView(words), shape, NumbersView(scales, scales.shape), WordsView(zeros)
        )
        return RowsView(whole, self._wanted[part], start)

    def _param(self, name: str, shape: Shape, dtype: str) -> MLCParam:
        if name not in self._shards.params:
            raise ModelFileError(f"there is no parameter {name}")
        param = self._shards.params[name]
        self._used.add(name)
        self._check(name, param.shape, shape)
        if param.dtype != dtype:
            raise ModelFileError(f"parameter {name} is {param.dtype}; it should be {dtype}")
        return param

    @staticmethod
    def _check(name: str, shape: Shape, expected: Shape) -> None:
        if shape != expected:
            raise ModelFileError(f"parameter {name} has shape {shape}, expected {expected}")
