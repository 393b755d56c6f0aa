"""What an engine needs to know of a model before anything is compiled: files, tokens, defaults."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import ModelFileError, UnsupportedModel, UserError
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import check_architecture
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.model_head import keep_head, open_with_head, tokenizer_of
from mlc_llm.support.model_source import ModelSource, resolve_model
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.byte_level import CHARACTERS

if TYPE_CHECKING:
    from mlc_llm.protocol.conversation_protocol import Conversation
    from mlc_llm.protocol.mlc_chat_config import MLCChatConfig

MAX_CONFIG_BYTES = 16 * 2**20
CHAT_CONFIG_FILE = "mlc-chat-config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
DEFAULT_MODEL_SAMPLING = {"temperature": 0.2, "top_p": 0.9}
"""What the default model's card recommends; its file says nothing, and it wanders at 1.0."""
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields of generation_config.json that mean the same here."""


@dataclass(frozen=True)
class ModelBundle:
    """A model's files, opened, and what they say. Nothing is computed or copied yet."""

    source: ModelSource | None
    gguf: GGUFFile | None
    """None where nothing is computed: the echo engine needs no weights."""
    tokenizer: Tokenizer
    chat_template: ChatTemplate | Conversation | None
    """The file's own, else the one that mlc-chat-config.json names; None: it cannot chat."""
    name: str
    context_window: int
    """Tokens of prompt and answer together."""
    stop_token_ids: frozenset[int]
    """From all the places where the model states them."""
    defaults: GenerationConfig
    """Merged under every request's config."""
    sliding_window: int = -1
    """Tokens that a token sees, as mlc-chat-config.json has it; -1: all."""
    attention_sinks: int = 0


def open_model(
    model: str | None = None, on_file: Callable[[GGUFFile], None] | None = None
) -> ModelBundle:
    """Open a `.gguf` file, a folder with one, a model that has to be fetched, or the default one.

    In a folder or a fetched model, mlc-chat-config.json and generation_config.json are read where
    they exist; the first comes before the second. `on_file` gets the file as soon as its header is
    known to be sound, before the tokenizer is made. Raises ModelNotFound, ModelFileError or
    UnsupportedModel.
    """
    source = resolve_model(model)
    path = _gguf_of(source)
    gguf, head = open_with_head(path)
    if on_file is not None:
        on_file(gguf)
    # Beside a file that was named itself may lie the files of another model.
    folder = path.parent if model is not None and Path(model).expanduser() != path else None
    chat, named = (None, None) if folder is None else _chat_config(folder)
    generation = DEFAULT_MODEL_SAMPLING if model is None else {}
    if folder is not None:
        generation = _json_file(folder / GENERATION_CONFIG_FILE)
    with _naming(path.parent / GENERATION_CONFIG_FILE):
        defaults = _defaults(chat, generation)
    tokenizer = tokenizer_of(head, gguf) or open_tokenizer(gguf)
    if head is None:
        keep_head(gguf)
    template = _chat_template(gguf, tokenizer) or named
    return ModelBundle(
        source=source,
        gguf=gguf,
        tokenizer=tokenizer,
        chat_template=template,
        name=source.name,
        context_window=_context_window(gguf, chat),
        stop_token_ids=_stop_token_ids(tokenizer, chat, named, generation),
        defaults=_with_stop_strs(defaults, None if template is not named else named),
        sliding_window=-1 if chat is None else chat.sliding_window_size,
        attention_sinks=0 if chat is None else max(chat.attention_sink_size, 0),
    )


def echo_bundle(context_window: int) -> ModelBundle:
    """What stands for a model where there is none: a tokenizer whose tokens are the 256 bytes, and
    a template that puts tools and messages in a row, so that they come back."""
    from mlc_llm.serve.chat_config import PLAIN_TEMPLATE

    return ModelBundle(
        source=None,
        gguf=None,
        tokenizer=Tokenizer.from_gguf_metadata(_byte_vocabulary()),
        chat_template=PLAIN_TEMPLATE,
        name="mock://echo",
        context_window=context_window,
        stop_token_ids=frozenset(),
        defaults=GenerationConfig(),
    )


def open_texts(model: str | None, context_window: int) -> ModelBundle:
    """A model as `open_model` gives it, or, of a folder without weights, its texts alone: the
    tokenizer in tokenizer.json, and what the JSON files say. Raises as `open_model`."""
    source = resolve_model(model)
    if source.kind == "gguf" or any(source.path.glob("*.gguf")):
        return open_model(model)
    chat, named = _chat_config(source.path)
    generation = _json_file(source.path / GENERATION_CONFIG_FILE)
    with _naming(source.path / GENERATION_CONFIG_FILE):
        defaults = _defaults(chat, generation)
    tokenizer = Tokenizer(source.path)
    return ModelBundle(
        source=source,
        gguf=None,
        tokenizer=tokenizer,
        chat_template=named,
        name=source.name,
        context_window=context_window,
        stop_token_ids=_stop_token_ids(tokenizer, chat, named, generation),
        defaults=_with_stop_strs(defaults, named),
    )


def open_tokenizer(gguf: GGUFFile) -> Tokenizer:
    """The tokenizer inside the file, or the one in tokenizer.json beside it."""
    if "tokenizer.ggml.model" in gguf.metadata:
        return Tokenizer.from_gguf_metadata(gguf.metadata)
    if (gguf.path.parent / "tokenizer.json").is_file():
        return Tokenizer(gguf.path.parent)
    raise UnsupportedModel(f"{gguf.path}: no tokenizer in the file, no tokenizer.json beside it")


def _gguf_of(source: ModelSource) -> Path:
    """The one GGUF file of a model (the first part of a split one)."""
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


def _chat_config(folder: Path) -> tuple[MLCChatConfig | None, Conversation | None]:
    """What mlc-chat-config.json says, and the template that it names."""
    path = folder / CHAT_CONFIG_FILE
    values = _json_file(path)
    if not values:
        return None, None
    from mlc_llm.serve import chat_config

    with _naming(path):
        chat = chat_config.MLCChatConfig.parse(values)
    return chat, chat_config.conversation(chat)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What is wrong with a value is wrong with the file that it stands in."""
    try:
        yield
    except UserError as error:
        raise ModelFileError(f"{path}: {error}") from None


def _json_file(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no such file. Raises `ModelFileError`."""
    try:
        if not path.is_file():
            return {}
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ModelFileError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes")
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise ModelFileError(f"{path}: should hold a JSON object")
    return values


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


def _context_window(gguf: GGUFFile, chat: MLCChatConfig | None) -> int:
    architecture = check_architecture(gguf.metadata)
    window = gguf.get_int(f"{architecture}.context_length", low=1, high=2**31 - 1)
    asked = -1 if chat is None else chat.context_window_size
    return min(window, asked) if asked > 0 else window


def _stop_token_ids(
    tokenizer: Tokenizer,
    chat: MLCChatConfig | None,
    named: Conversation | None,
    generation: dict[str, Any],
) -> frozenset[int]:
    ids = set(tokenizer.eos_token_ids)
    if chat is not None:
        ids |= chat.eos_token_ids()
    if named is not None:
        ids |= set(named.stop_token_ids)
    stated = generation.get("eos_token_id", [])
    more = stated if isinstance(stated, list) else [stated]
    ids |= {one for one in more if isinstance(one, int) and not isinstance(one, bool)}
    return frozenset(one for one in ids if 0 <= one < tokenizer.vocab_size)


def _defaults(chat: MLCChatConfig | None, generation: dict[str, Any]) -> GenerationConfig:
    values = {name: generation[name] for name in _DEFAULTS if name in generation}
    if generation.get("do_sample") is False:
        values = {**values, "temperature": 0.0}
    below = GenerationConfig(**values)
    return below if chat is None else chat.default_generation_config().merged_over(below)


def _with_stop_strs(defaults: GenerationConfig, named: Conversation | None) -> GenerationConfig:
    """A named template says by which texts an answer ends."""
    if named is None or not named.stop_str:
        return defaults
    return GenerationConfig(stop_strs=named.stop_str).merged_over(defaults)


def _byte_vocabulary() -> dict[str, Any]:
    """GGUF metadata of a byte-level tokenizer without merges: token i is byte i."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(CHARACTERS),
        "tokenizer.ggml.token_type": [1] * len(CHARACTERS),
        "tokenizer.ggml.merges": [],
    }
