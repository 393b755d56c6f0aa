"""From a model's name to its opened files, its tokenizer, its chat template and its defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import ModelNotFound, UnsupportedModel
from mlc_llm.loader.gguf import GGUFFile, Value
from mlc_llm.models.registry import check_architecture
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.opening.header_cache import keep_head, open_with_head, tokenizer_of
from mlc_llm.serve.opening.settings import (
    ModelSettings,
    read_settings,
    settings_of_default_model,
)
from mlc_llm.support.model_source import ModelSource, resolve_model
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.byte_level import CHARACTERS

if TYPE_CHECKING:
    from mlc_llm.protocol.conversation_protocol import Conversation

MOCK_ECHO = "mock://echo"

OnFile = Callable[[GGUFFile], None]


class ModelInfo(NamedTuple):
    """One of the models of an engine."""

    model: str | None
    """See `open_model`; None: the default model."""
    model_lib: str | None = None
    """A folder with a compiled model library; None: it is compiled when it is needed."""


@dataclass(frozen=True)
class ModelBundle:
    """A model's opened files and what they say. Nothing is computed or copied yet."""

    source: ModelSource | None
    gguf: GGUFFile | None
    """None for an engine that computes nothing: the echo engine needs no weights."""
    tokenizer: Tokenizer
    chat_template: ChatTemplate | Conversation | None
    """The template in the file, else the one that mlc-chat-config.json names; None: the model
    cannot chat."""
    name: str
    context_window: int
    """Tokens of a prompt and its answer together."""
    stop_token_ids: frozenset[int]
    """From all places where the model names them."""
    defaults: GenerationConfig
    """Merged under every request's config."""
    sliding_window: int = -1
    """The tokens that a token sees, as mlc-chat-config.json says; -1: all."""
    attention_sinks: int = 0


def parse_models(
    model: str | None,
    model_lib: str | None,
    additional_models: list[str | tuple[str, str]],
) -> list[ModelInfo]:
    """The main model first, then the additional ones."""
    more = [
        ModelInfo(one) if isinstance(one, str) else ModelInfo(*one) for one in additional_models
    ]
    return [ModelInfo(model, model_lib), *more]


def open_models(models: list[ModelInfo], on_file: OnFile | None = None) -> list[ModelBundle]:
    """Open every model; `on_file`: see `open_model`.

    Raises `ModelNotFound` for a library that is not there, and what `open_model` raises.
    """
    for one in models:
        if one.model_lib is not None and not Path(one.model_lib).is_dir():
            raise ModelNotFound(
                f"model_lib {one.model_lib!r}: no such folder; leave it out, and the model is "
                "compiled for this machine"
            )
    return [open_model(one.model, on_file) for one in models]


def open_model(model: str | None = None, on_file: OnFile | None = None) -> ModelBundle:
    """Open a `.gguf` file, a folder with one, a model that has to be fetched, or the default one.

    The files mlc-chat-config.json and generation_config.json are read in a folder and in a fetched
    model. `on_file` gets the file when its header is known to be sound, before the tokenizer is
    made. Raises `ModelNotFound`, `ModelFileError` or `UnsupportedModel`.
    """
    source = resolve_model(model)
    path = _gguf_of(source)
    gguf, head = open_with_head(path)
    if on_file is not None:
        on_file(gguf)
    settings = _settings_of(model, path)
    tokenizer = tokenizer_of(head, gguf) or open_tokenizer(gguf)
    if head is None:
        keep_head(gguf)
    template = _chat_template(gguf, tokenizer)
    return ModelBundle(
        source=source,
        gguf=gguf,
        tokenizer=tokenizer,
        chat_template=template or settings.template,
        name=source.name,
        context_window=_context_window(gguf, settings),
        stop_token_ids=_stop_token_ids(tokenizer, settings),
        defaults=settings.defaults(with_template=template is None),
        sliding_window=settings.sliding_window,
        attention_sinks=settings.attention_sinks,
    )


def open_without_weights(model: str | None, context_window: int) -> ModelBundle:
    """As `open_model`. A folder without a `.gguf` file gives its tokenizer.json and its settings.

    context_window: the bundle's, for such a folder. Raises what `open_model` raises.
    """
    source = resolve_model(model)
    if source.kind == "gguf" or any(source.path.glob("*.gguf")):
        return open_model(model)
    settings = read_settings(source.path)
    tokenizer = Tokenizer(source.path)
    return ModelBundle(
        source=source,
        gguf=None,
        tokenizer=tokenizer,
        chat_template=settings.template,
        name=source.name,
        context_window=context_window,
        stop_token_ids=_stop_token_ids(tokenizer, settings),
        defaults=settings.defaults(with_template=True),
    )


def echo_bundle(context_window: int) -> ModelBundle:
    """What the echo engine has instead of a model.

    Its tokenizer has the 256 bytes as tokens. Its chat template writes tools and messages one
    after the other, so that they come back.
    """
    from mlc_llm.serve.opening.chat_config import PLAIN_TEMPLATE

    return ModelBundle(
        source=None,
        gguf=None,
        tokenizer=Tokenizer.from_gguf_metadata(_byte_vocabulary()),
        chat_template=PLAIN_TEMPLATE,
        name=MOCK_ECHO,
        context_window=context_window,
        stop_token_ids=frozenset(),
        defaults=GenerationConfig(),
    )


def open_tokenizer(gguf: GGUFFile) -> Tokenizer:
    """The tokenizer in the file, or the one in tokenizer.json beside it.

    Raises `UnsupportedModel` if there is neither, and what `Tokenizer` raises.
    """
    if "tokenizer.ggml.model" in gguf.metadata:
        return Tokenizer.from_gguf_metadata(gguf.metadata)
    if (gguf.path.parent / "tokenizer.json").is_file():
        return Tokenizer(gguf.path.parent)
    raise UnsupportedModel(f"{gguf.path}: no tokenizer in the file, no tokenizer.json beside it")


def _gguf_of(source: ModelSource) -> Path:
    """The one GGUF file of a model; for a split model, its first part."""
    if source.kind == "gguf":
        return source.path
    found = sorted(source.path.glob("*.gguf"))
    first = [path for path in found if "-of-" not in path.stem or "-00001-of-" in path.stem]
    if not first:
        raise UnsupportedModel(
            f"{source.path}: no .gguf file in this folder; other weight formats are not supported "
            "yet"
        )
    if len(first) > 1:
        names = ", ".join(path.name for path in first[:5])
        raise UnsupportedModel(f"{source.path}: several models in this folder ({names}); name one")
    return first[0]


def _settings_of(model: str | None, path: Path) -> ModelSettings:
    """path: the model's file. The JSON files beside a file that was named itself are not read:
    they may belong to another model."""
    if model is None:
        return settings_of_default_model()
    return ModelSettings() if Path(model).expanduser() == path else read_settings(path.parent)


def _chat_template(gguf: GGUFFile, tokenizer: Tokenizer) -> ChatTemplate | None:
    source = gguf.get_str("tokenizer.chat_template", None)
    if source is None:
        return None
    bos = _text(tokenizer, tokenizer.bos_token_id)
    eos = _text(tokenizer, gguf.get_int("tokenizer.ggml.eos_token_id", None))
    return ChatTemplate(source, bos=bos, eos=eos)


def _text(tokenizer: Tokenizer, token_id: int | None) -> str:
    if token_id is None:
        return ""
    return next((text for text, one in tokenizer.special_tokens.items() if one == token_id), "")


def _context_window(gguf: GGUFFile, settings: ModelSettings) -> int:
    architecture = check_architecture(gguf.metadata)
    window = gguf.get_int(f"{architecture}.context_length", low=1, high=2**31 - 1)
    return window if settings.context_window is None else min(window, settings.context_window)


def _stop_token_ids(tokenizer: Tokenizer, settings: ModelSettings) -> frozenset[int]:
    ids = settings.stop_token_ids.union(tokenizer.eos_token_ids)
    return frozenset(one for one in ids if 0 <= one < tokenizer.vocab_size)


def _byte_vocabulary() -> Mapping[str, Value]:
    """GGUF metadata of a byte-level tokenizer without merges: token i is byte i."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(CHARACTERS),
        "tokenizer.ggml.token_type": [1] * len(CHARACTERS),
        "tokenizer.ggml.merges": [],
    }
