"""LoRA adapters in folders of PEFT: adapter_config.json and adapter_model.safetensors.

Format: `LoraConfig` and `LoraLayer` of PEFT. The factors of a module NAME of the model are the
tensors base_model.model.NAME.lora_A.weight [rank, columns] and .lora_B.weight [rows, rank]. Their
scale is lora_alpha / rank, or lora_alpha / sqrt(rank) with `use_rslora`; `rank_pattern` and
`alpha_pattern` change both numbers for some modules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlc_llm.errors import ModelFileError, ModelNotFound, UnsupportedModel
from mlc_llm.json_file import read_json_object
from mlc_llm.loader.gguf_cursor import printable
from mlc_llm.loader.gguf_tensors import GGUFTensor
from mlc_llm.loader.huggingface import state_of
from mlc_llm.loader.lora import DOWN, MAX_RANK, UP, Factors, LoraAdapter, pairs_of
from mlc_llm.loader.safetensors_file import SafetensorsFile

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MAX_JSON_BYTES = 1 << 20
_START = "base_model.model."
_HALVES = {".lora_A.weight": DOWN, ".lora_B.weight": UP}
_MODULE = re.compile(r"\^?[\w.]+")

_READ = {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias"}
_OF_TRAINING = {
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
    "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "loftq_config", "lora_dropout", "megatron_config", "megatron_core",
    "peft_version", "qalora_group_size", "revision", "runtime_config", "target_modules",
    "task_type",
}  # fmt: skip
"""What only those need who train. Which modules there are, the tensors say."""
_PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the model's own weights as they are."""


def open_lora_folder(path: Path) -> LoraAdapter:
    """Raises ModelNotFound, ModelFileError, UnsupportedModel."""
    state = state_of(path / CONFIG)
    config = read_json_object(path / CONFIG, MAX_JSON_BYTES)
    _check(path / CONFIG, config)
    if not (path / WEIGHTS).is_file():
        raise ModelNotFound(f"{path / WEIGHTS}: no such file; no other file of weights is read")
    file = SafetensorsFile.open(path / WEIGHTS)
    factors = {}
    for module, (down, up) in pairs_of(path, _halves(file)).items():
        scale = _scale(path / CONFIG, config, module, down.shape[0])
        factors[f"{module}.weight"] = Factors(down, up, scale)
    return LoraAdapter(path, None, factors, ((path / CONFIG, state), (file.path, file.stat)))


def _check(path: Path, config: Mapping[str, Any]) -> None:
    """Raises UnsupportedModel for a setting that is not computed, with its name."""
    if config.get("peft_type") != "LORA":
        raise _unsupported(path, config, "peft_type", "LORA")
    if config.get("bias", "none") != "none":
        raise _unsupported(path, config, "bias", "none")
    start = config.get("init_lora_weights")
    if start not in _PLAIN_STARTS:
        raise _unsupported(path, config, "init_lora_weights", "true, gaussian, eva, orthogonal")
    for name in sorted(set(config) - _READ - _OF_TRAINING):
        if config[name] not in (None, False, [], {}, "", "default"):
            raise UnsupportedModel(
                f"{path}: {printable(name)} = {_shown(config[name])} is not supported"
            )


def _unsupported(
    path: Path, config: Mapping[str, Any], name: str, allowed: str
) -> UnsupportedModel:
    said = _shown(config.get(name))
    return UnsupportedModel(f"{path}: {name} = {said} is not supported; supported: {allowed}")


def _shown(value: object) -> str:
    return repr(value)[:60]


def _halves(file: SafetensorsFile) -> Iterator[tuple[str, str, GGUFTensor]]:
    for name, tensor in file.tensors.items():
        end = name[-len(".lora_A.weight") :]
        if not name.startswith(_START) or end not in _HALVES:
            raise UnsupportedModel(
                f"{file.path}: tensor {printable(name)} is not supported; only lora_A and lora_B "
                "of matrices are"
            )
        yield name[len(_START) : -len(end)], _HALVES[end], tensor


def _scale(path: Path, config: Mapping[str, Any], module: str, rank: int) -> float:
    """The scale of a module whose factors have this rank. Raises ModelFileError,
    UnsupportedModel."""
    stated = _of_module(path, config, "rank_pattern", module, config.get("r"))
    if type(stated) is not int or not 1 <= stated <= MAX_RANK:
        raise ModelFileError(f"{path}: r = {_shown(stated)} must be an integer in [1, {MAX_RANK}]")
    if stated != rank:
        raise ModelFileError(
            f"{path}: module {printable(module)} should have rank {stated}; its factors have {rank}"
        )
    alpha = _of_module(path, config, "alpha_pattern", module, config.get("lora_alpha", 8))
    is_number = isinstance(alpha, (int, float)) and not isinstance(alpha, bool)
    if not is_number or not math.isfinite(alpha) or abs(alpha) > 1e6:
        raise ModelFileError(
            f"{path}: lora_alpha = {_shown(alpha)} must be a number in [-1e6, 1e6]"
        )
    use_root = config.get("use_rslora", False)
    if not isinstance(use_root, (bool, type(None))):
        raise ModelFileError(f"{path}: use_rslora = {_shown(use_root)} must be true or false")
    return float(alpha / math.sqrt(rank) if use_root else alpha / rank)


def _of_module(
    path: Path, config: Mapping[str, Any], field: str, module: str, default: object
) -> Any:
    """What a pattern says of a module: the first key that is its name or the end of it, from a dot
    on; with ^ before it, only the whole name. PEFT takes any regular expression, which could take
    forever to compare."""
    table = config.get(field) or {}
    if not isinstance(table, dict):
        raise ModelFileError(f"{path}: {field} = {_shown(table)} must be an object")
    for key, value in table.items():
        if _MODULE.fullmatch(key) is None:
            raise UnsupportedModel(
                f"{path}: {field} {_shown(key)} is not supported; supported: names of modules"
            )
        if f".{module}".endswith(f".{key}") or key == f"^{module}":
            return value
    return default
