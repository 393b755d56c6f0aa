"""Which files of a repository a model needs: weights and plain text, never pickles, never code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mlc_llm.errors import ModelNotFound
from mlc_llm.support.gguf_parts import is_later_part, same_model, stem_of
from mlc_llm.support.hub_address import PLAIN_NAME, Address

CHAT_CONFIG = "mlc-chat-config.json"
CONFIG = "config.json"
FOLDER_CHOICE = 4
"""The number of the choice of a folder's files. One more where it takes more files than before: a
download by an older choice may lack them."""
_SETTINGS = frozenset(
    {CHAT_CONFIG, "generation_config.json"}
    | {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
)
"""What is read beside a .gguf file."""
_TEXTS = _SETTINGS | {
    *(CONFIG, "quantize_config.json", "quant_config.json"),
    *("tensor-cache.json", "ndarray-cache.json", "model.safetensors.index.json"),
    *("added_tokens.json", "chat_template.json"),
    *("tekken.json", "tokenizer.model", "spiece.model", "tiktoken.model"),
    *("sentencepiece.bpe.model", "vocab.json", "merges.txt", "vocab.txt"),
    *("rwkv_vocab_v20230424.txt", "preprocessor_config.json", "processor_config.json"),
}
"""What is read in a folder of other weights."""
_MODULES = "modules.json"
_OF_MODULE = re.compile(
    r"[1-9]\d*_\w+/(?:config\.json|model\.safetensors)|sentence_[\w-]+_config\.json", re.ASCII
)
"""What is read of the modules of sentence-transformers behind the model: pooling, and matrices.
Number 0 is the model itself, with a file about its texts."""
_TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
_ENDINGS = (".jinja", ".tiktoken")
_USUAL = re.compile(r"model(-\d+-of-\d+)?\.safetensors", re.ASCII)
_SHARD = re.compile(r"params_shard_\d+\.bin", re.ASCII)
"""Plain numbers in upstream's own folders. Every other .bin file may be a pickle."""
_NO_MODEL = ("mmproj", "imatrix")
"""How names of .gguf files begin that are no language model."""
_SHOWN_NAMES = 40


class Choice(NamedTuple):
    """The file that stands for the model (a .gguf file or a config), and all files it needs."""

    model: str
    files: list[str]


def choose(names: Iterable[str], address: Address) -> Choice:
    """The files of the model that `address` means.

    A file that the address names comes first; then mlc-chat-config.json, the only .gguf file, and
    config.json with .safetensors files. Raises ModelNotFound, with what the repository has.
    """
    plain = sorted(n for n in names if all(PLAIN_NAME.fullmatch(part) for part in n.split("/")))
    top = [name for name in plain if "/" not in name]
    if address.file is None and address.tag is None and CHAT_CONFIG in top:
        return Choice(CHAT_CONFIG, _folder(top, plain))
    models = [name for name in plain if _is_model(name)]
    model = _named(models, plain, address)
    if model is None and CONFIG in top and _weights(top):
        return Choice(CONFIG, _folder(top, plain))
    if model is None:
        raise ModelNotFound(
            f"{address}: no model there: neither a .gguf file, nor {CHAT_CONFIG}, nor {CONFIG} "
            "with .safetensors files"
        )
    parts = [name for name in plain if same_model(name, model)]
    return Choice(model, _texts(top, _SETTINGS) + parts)


def _folder(top: Sequence[str], plain: Sequence[str]) -> list[str]:
    """All of a folder of other weights."""
    modules = [_MODULES, *filter(_OF_MODULE.fullmatch, plain)] if _MODULES in top else []
    own = [_TOOL_TEMPLATE] if _TOOL_TEMPLATE in plain else []
    return _texts(top, _TEXTS) + own + modules + _weights(top)


def _texts(top: Sequence[str], wanted: Iterable[str]) -> list[str]:
    return [name for name in top if name in wanted or name.endswith(_ENDINGS)]


def _weights(top: Sequence[str]) -> list[str]:
    """Weights at the top of a repository. Where they have the usual names, they come alone: beside
    them may lie adapters, other precisions, and files of other programs."""
    tensors = [name for name in top if name.endswith(".safetensors")]
    usual = [name for name in tensors if _USUAL.fullmatch(name)]
    return (usual or tensors) + [name for name in top if _SHARD.fullmatch(name)]


def _is_model(name: str) -> bool:
    file = name.rpartition("/")[2].lower()
    return file.endswith(".gguf") and not is_later_part(name) and not file.startswith(_NO_MODEL)


def _named(models: Sequence[str], plain: Sequence[str], address: Address) -> str | None:
    """The .gguf file that the address means; None if it names none and there is none."""
    if address.file is not None:
        if address.file not in plain:
            raise ModelNotFound(f"{address}: no such file in the repository{_shown(models)}")
        return address.file
    fitting = models if address.tag is None else [n for n in models if _has_tag(n, address.tag)]
    if len(fitting) == 1:
        return fitting[0]
    if address.tag is not None and not fitting:
        raise ModelNotFound(f"{address}: no .gguf file with this ending{_shown(models)}")
    if not fitting:
        return None
    usage = f"{address.whole}:ENDING or {address.whole}/FILE"
    raise ModelNotFound(
        f"{address}: {len(fitting)} models there, name one, {usage}{_shown(fitting)}"
    )


def _has_tag(name: str, tag: str) -> bool:
    """Whether a folder or a part of the file's name, cut at "-" and ".", is `tag`."""
    *folders, file = stem_of(name).split("/")
    found = re.search(rf"(?:^|[^a-z0-9]){re.escape(tag)}(?:$|[-.])", file, re.IGNORECASE)
    return found is not None or tag.lower() in map(str.lower, folders)


def _shown(models: Sequence[str]) -> str:
    if not models:
        return ""
    more = f", and {len(models) - _SHOWN_NAMES} more" if len(models) > _SHOWN_NAMES else ""
    return f"; there are {', '.join(models[:_SHOWN_NAMES])}{more}"
