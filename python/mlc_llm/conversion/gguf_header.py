"""The metadata of a GGUF file that is made of a Hugging Face folder.

Keys and values are those that llama.cpp's convert_hf_to_gguf.py writes, but for what it guesses of
names: of the keys `general.*` there are the type and the folder's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mlc_llm.conversion.gguf_entries import float32_entry, text_entry, uint32_entry
from mlc_llm.conversion.gguf_vocabulary import vocabulary_entries
from mlc_llm.errors import UnsupportedModel
from mlc_llm.loader.gguf_metadata import RawEntry
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.models.spec import AttentionSpec, DenseSpec, ModelSpec, RopeSpec

Entries = dict[str, RawEntry]
_GEMMA_EVERY = 6
"""Layers 5, 11, ... of a Gemma 3 see everything; files do not say it."""
_ROPES = ("default", "linear", "llama3")


def metadata_of(files: HuggingFaceModel) -> Entries:
    """All entries but those of the tensors' types. Raises UnsupportedModel for what is not written
    yet, by its name; ModelFileError."""
    spec, config = files.plan().spec, files.folder.config
    more = _more_of(config)
    _check_ropes(config, spec)
    name = spec.architecture
    own = _sizes(spec, config) | more(spec)
    return {
        "general.architecture": text_entry(name),
        "general.type": text_entry("model"),
        "general.name": text_entry(files.path.resolve().name),
        **{f"{name}.{key}": entry for key, entry in own.items()},
        **vocabulary_entries(files.path, spec.vocab),
    }


def _more_of(config: Mapping[str, object]) -> Callable[[ModelSpec], Entries]:
    """What writes the entries of an architecture that others do not have."""
    classes = config.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes else None
    if not isinstance(name, str) or name not in _MORE:
        raise UnsupportedModel(
            f"a .gguf file of {name} is not written yet; of these it is: {', '.join(_MORE)}; "
            "llama.cpp's convert_hf_to_gguf.py writes others"
        )
    return _MORE[name]


def _sizes(spec: ModelSpec, config: Mapping[str, object]) -> Entries:
    """What all architectures have."""
    one = next(iter(spec.attention_layers.values()))
    network = spec.layers[0].feed_forward
    assert isinstance(network, DenseSpec), "these architectures are dense"
    found = {
        "block_count": uint32_entry(len(spec.layers)),
        "context_length": uint32_entry(spec.context_window),
        "embedding_length": uint32_entry(spec.hidden),
        "feed_forward_length": uint32_entry(network.intermediate),
        "attention.head_count": uint32_entry(one.heads),
        "attention.head_count_kv": uint32_entry(one.kv_heads),
        "attention.layer_norm_rms_epsilon": float32_entry(spec.norm_eps),
        "rope.freq_base": float32_entry(_rope(spec, windowed=False).theta),
    }
    if config.get("head_dim") is not None or one.heads * one.head_dim != spec.hidden:
        found["attention.key_length"] = uint32_entry(one.head_dim)
        found["attention.value_length"] = uint32_entry(one.head_dim)
    linear = _rope(spec, windowed=False).linear
    if linear != 1:
        found["rope.scaling.type"] = text_entry("linear")
        found["rope.scaling.factor"] = float32_entry(linear)
    return found


def _rope(spec: ModelSpec, *, windowed: bool) -> RopeSpec:
    """The rotary table of the layers that have a window, or of the others."""
    found = [one for one in spec.attention_layers.values() if (one.window is None) != windowed]
    chosen = (found or list(spec.attention_layers.values()))[0].rope
    assert chosen is not None, "these architectures rotate"
    return spec.ropes[chosen]


def _check_ropes(config: Mapping[str, object], spec: ModelSpec) -> None:
    """Raises UnsupportedModel for a scaling that is not written."""
    for field in ("rope_parameters", "rope_scaling"):
        stated = config.get(field)
        both = stated if isinstance(stated, dict) else {}
        for one in (both, *both.values()):
            kind = (one.get("rope_type") or one.get("type")) if isinstance(one, dict) else None
            if kind is not None and kind not in _ROPES:
                raise UnsupportedModel(f"{field}: a .gguf file of {kind!r} is not written yet")
    if spec.architecture != "llama" and any(one.factors for one in spec.ropes):
        raise UnsupportedModel(f"a .gguf file of {spec.architecture} has no factors of frequencies")


def _llama(spec: ModelSpec) -> Entries:
    one = next(iter(spec.attention_layers.values()))
    _refuse_windows(spec)
    return {
        "vocab_size": uint32_entry(spec.vocab),
        "rope.dimension_count": uint32_entry(one.head_dim),
    }


def _qwen(spec: ModelSpec) -> Entries:
    _refuse_windows(spec)
    return {}


def _gemma3(spec: ModelSpec) -> Entries:
    windows = [one.window for one in spec.attention_layers.values()]
    window = next((one for one in windows if one is not None), None)
    every = [window if (i + 1) % _GEMMA_EVERY else None for i in range(len(windows))]
    if window is None or windows != every:
        raise UnsupportedModel(
            "layer_types: a .gguf file of gemma3 has layers that see everything at every sixth"
        )
    if _rope(spec, windowed=True).linear != 1:
        raise UnsupportedModel("a .gguf file of gemma3 scales no layers with windows")
    found = {
        "attention.sliding_window": uint32_entry(window),
        "rope.freq_base_swa": float32_entry(_rope(spec, windowed=True).theta),
    }
    if spec.logit_cap is not None:
        found["final_logit_softcapping"] = float32_entry(spec.logit_cap)
    return found


def _refuse_windows(spec: ModelSpec) -> None:
    """Raises UnsupportedModel: the file would say nothing of them."""
    for i, layer in enumerate(spec.layers):
        if isinstance(layer.mixer, AttentionSpec) and layer.mixer.window is not None:
            words = f"layer {i} has a window, which a .gguf file of {spec.architecture} cannot say"
            raise UnsupportedModel(words)


_MORE: dict[str, Callable[[ModelSpec], Entries]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _llama,
    "Qwen2ForCausalLM": _qwen,
    "Qwen3ForCausalLM": _qwen,
    "Gemma3ForCausalLM": _gemma3,
}
"""By the class in config.json."""
