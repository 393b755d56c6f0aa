"""From a model's name to its opened files, its tokenizer, its chat template and its defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import InvalidField, ModelNotFound, UnsupportedModel
from mlc_llm.loader.gguf import Value
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.pooling import LAST_TOKEN, Pooling
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.record import record
from mlc_llm.serve.echo_model import MOCK_ECHO
from mlc_llm.serve.opening.header_cache import open_with_head
from mlc_llm.serve.opening.settings import (
    ModelSettings,
    read_settings,
    settings_of_default_model,
    with_gguf,
)
from mlc_llm.support.gguf_parts import is_tower
from mlc_llm.support.hub_choice import CONFIG
from mlc_llm.support.model_source import ModelSource, resolve_model
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.byte_level import CHARACTERS

if TYPE_CHECKING:
    from mlc_llm.images.reader import ImageReader
    from mlc_llm.model_files.tower import TowerFiles
    from mlc_llm.models.image_spec import Sight
    from mlc_llm.protocol.conversation_protocol import Conversation
    from mlc_llm.ranking import Ranking

SHARD_INDEXES = ("tensor-cache.json", "ndarray-cache.json")
"""One of them is in MLC LLM's folders."""

OnFiles = Callable[[ModelFiles], None]
RopeScaling = Mapping[str, object]
"""See `EngineConfig.rope_scaling`."""


class ModelInfo(NamedTuple):
    """One of the models of an engine."""

    model: str | None
    """See `open_model`; None: the default model."""
    model_lib: str | None = None
    """A folder with a compiled model library; None: it is compiled when it is needed."""


@record()
class Vision:
    """How a model reads images."""

    files: TowerFiles
    """The tower. Nothing is computed or copied yet."""
    reader: ImageReader
    sight: Sight


@record()
class ModelBundle:
    """A model's opened files and what they say. Nothing is computed or copied yet."""

    source: ModelSource | None
    files: ModelFiles | None
    """None for an engine that computes nothing: the echo engine needs no weights."""
    tokenizer: Tokenizer
    chat_template: ChatTemplate | Conversation | None
    """The template in the file, else the one that mlc-chat-config.json names; the other way round
    if that file says so (`prefer_conv_template`). None: the model cannot chat."""
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
    pooling: str | None = None
    """See `ModelFiles`."""
    vision: Vision | None = None
    """None: it reads no images."""
    ranking: Ranking | None = None
    """How a decoder ranks documents; None: it does not."""

    @property
    def is_encoder(self) -> bool:
        """It makes vectors of texts, and writes none."""
        return self.files is not None and self.files.plan().spec.encoder is not None

    @property
    def is_medusa(self) -> bool:
        """It is no model, but Medusa heads for one."""
        return self.files is not None and self.files.plan().spec.medusa is not None

    @property
    def scores(self) -> int:
        """Scores that it gives to two texts; 0: it compares none."""
        if self.ranking is not None:
            return 1
        encoder = None if self.files is None else self.files.plan().spec.encoder
        return 0 if encoder is None else encoder.labels


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


def open_models(
    models: list[ModelInfo],
    on_files: OnFiles | None = None,
    quantization: str | None = None,
    rope_scaling: RopeScaling | None = None,
    *,
    drafter: str = "small_draft",
) -> list[ModelBundle]:
    """Open every model; `on_files`: see `open_model`. quantization, rope_scaling: of the first
    model. drafter: what the second one is, as `EngineConfig.speculative_mode`. An EAGLE head
    becomes a part of the model.

    Raises `ModelNotFound` for a library that is not there, and what `open_model` raises.
    """
    for one in models:
        if one.model_lib is not None and not Path(one.model_lib).is_dir():
            raise ModelNotFound(
                f"model_lib {one.model_lib!r}: no such folder; leave it out, and the model is "
                "compiled for this machine"
            )
    first, *more = models
    if drafter == "eagle":
        return [
            _with_head(open_model(first.model, None, quantization, rope_scaling), more, on_files)
        ]
    main = open_model(first.model, on_files, quantization, rope_scaling)
    if drafter == "medusa":
        return [main, *(_open_heads(one, main, on_files) for one in more)]
    return [main, *(open_model(one.model, on_files) for one in more)]


def _with_head(main: ModelBundle, more: list[ModelInfo], on_files: OnFiles | None) -> ModelBundle:
    """A model with its EAGLE head. Raises what `open_eagle` raises."""
    from mlc_llm.model_files.eagle import open_eagle

    (head,) = more
    assert main.files is not None
    files = open_eagle(resolve_model(head.model).path, main.files)
    if on_files is not None:
        on_files(files)
    return replace(main, files=files)


def _open_heads(info: ModelInfo, main: ModelBundle, on_files: OnFiles | None) -> ModelBundle:
    """Draft heads, with what they have of the model. Raises what `open_medusa` raises."""
    from mlc_llm.model_files.medusa import open_medusa

    source = resolve_model(info.model)
    files = open_medusa(source.path)
    if on_files is not None:
        on_files(files)
    return replace(main, source=source, files=files, name=source.name, chat_template=None)


def open_model(
    model: str | None = None,
    on_files: OnFiles | None = None,
    quantization: str | None = None,
    rope_scaling: RopeScaling | None = None,
) -> ModelBundle:
    """Open a `.gguf` file, a folder with a model, one that has to be fetched, or the default one.

    The files mlc-chat-config.json and generation_config.json are read in a folder and in a fetched
    model. `on_files` gets the files when their headers are known to be sound, before the tokenizer
    is made. Raises `ModelNotFound`, `ModelFileError` or `UnsupportedModel`.
    """
    source = resolve_model(model)
    path = _gguf_of(source)
    settings = _settings_of(model, path or source.path)
    if path is None:
        files: ModelFiles = _open_folder(source.path)
    else:
        files = of_file = open_with_head(path)
        settings = with_gguf(settings, of_file.file)
    if quantization is not None:
        files = _quantized(files, quantization)
    if rope_scaling is not None:
        files = _rescaled(files, rope_scaling)
    if on_files is not None:
        on_files(files)
    tokenizer = files.tokenizer()
    template = None if settings.prefers_template else files.chat_template(tokenizer)
    return ModelBundle(
        source=source,
        files=files,
        tokenizer=tokenizer,
        chat_template=template or settings.template,
        name=source.name,
        context_window=(
            _context_window(files, settings) if rope_scaling is None else files.context_window
        ),
        stop_token_ids=_stop_token_ids(tokenizer, settings, files.stop_token_ids),
        defaults=settings.defaults(with_template=template is None),
        sliding_window=settings.sliding_window,
        attention_sinks=settings.attention_sinks,
        pooling=files.pooling,
        ranking=files.ranking(),
    )


def _quantized(files: ModelFiles, quantization: str) -> ModelFiles:
    from mlc_llm.model_files.quantized import QuantizedModel

    return QuantizedModel.of_files(files, quantization)


def _rescaled(files: ModelFiles, rope_scaling: RopeScaling) -> ModelFiles:
    from mlc_llm.model_files.rescaled import RescaledModel

    return RescaledModel.of_files(files, rope_scaling)


def _open_folder(path: Path) -> ModelFiles:
    """The model in a folder that has no `.gguf` file."""
    if any((path / name).is_file() for name in SHARD_INDEXES):
        from mlc_llm.model_files.mlc import MLCModel

        return MLCModel.open(path)
    if not (path / CONFIG).is_file():
        known = f"no .gguf file, no {CONFIG}, no {SHARD_INDEXES[0]}"
        raise UnsupportedModel(f"{path}: {known} in this folder")
    from mlc_llm.model_files.huggingface import HuggingFaceModel

    return HuggingFaceModel.open(path)


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
        files=None,
        tokenizer=tokenizer,
        chat_template=settings.template,
        name=source.name,
        context_window=context_window,
        stop_token_ids=_stop_token_ids(tokenizer, settings),
        defaults=settings.defaults(with_template=True),
    )


def with_pooling(bundle: ModelBundle, asked: Pooling | None) -> ModelBundle:
    """The bundle, pooled as the user asks. Raises InvalidField for what a decoder cannot do."""
    if asked is None:
        return bundle
    if not bundle.is_encoder and asked != LAST_TOKEN:
        raise InvalidField("pooling", asked, f"{bundle.name} is a decoder: {LAST_TOKEN!r} alone")
    return replace(bundle, pooling=asked)


def echo_bundle(context_window: int) -> ModelBundle:
    """What the echo engine has instead of a model.

    Its tokenizer has the 256 bytes as tokens. Its chat template writes tools and messages one
    after the other, so that they come back.
    """
    from mlc_llm.serve.opening.chat_config import PLAIN_TEMPLATE

    return ModelBundle(
        source=None,
        files=None,
        tokenizer=Tokenizer.from_gguf_metadata(_byte_vocabulary()),
        chat_template=PLAIN_TEMPLATE,
        name=MOCK_ECHO,
        context_window=context_window,
        stop_token_ids=frozenset(),
        defaults=GenerationConfig(),
        pooling=LAST_TOKEN,
    )


def _gguf_of(source: ModelSource) -> Path | None:
    """The one GGUF file of a model; for a split model, its first part. None: it has none."""
    if source.kind == "gguf":
        return source.path
    found = sorted(source.path.glob("*.gguf"))
    first = [path for path in found if "-of-" not in path.stem or "-00001-of-" in path.stem]
    first = [path for path in first if not is_tower(path.name)] or first
    if not first:
        return None
    if len(first) > 1:
        names = ", ".join(path.name for path in first[:5])
        raise UnsupportedModel(f"{source.path}: several models in this folder ({names}); name one")
    return first[0]


def _settings_of(model: str | None, path: Path) -> ModelSettings:
    """path: the model's file or folder. The JSON files beside a file that was named itself are not
    read: they may belong to another model."""
    if model is None:
        return settings_of_default_model()
    if path.is_dir():
        return read_settings(path)
    return ModelSettings() if Path(model).expanduser() == path else read_settings(path.parent)


def _context_window(files: ModelFiles, settings: ModelSettings) -> int:
    stated = settings.context_window
    return files.context_window if stated is None else min(files.context_window, stated)


def _stop_token_ids(
    tokenizer: Tokenizer, settings: ModelSettings, more: frozenset[int] = frozenset()
) -> frozenset[int]:
    ids = settings.stop_token_ids.union(tokenizer.eos_token_ids, more)
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
