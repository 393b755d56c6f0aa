"""The JSON files beside a model's weights: mlc-chat-config.json and generation_config.json, or what
a .gguf file has in place of the second one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_llm.errors import ModelFileError, UserError
from mlc_llm.json_file import read_json_object
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_files.sampling import folder_sampling, gguf_sampling
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.record import record

if TYPE_CHECKING:
    from mlc_llm.protocol.conversation_protocol import Conversation
    from mlc_llm.protocol.json_value import JsonValue
    from mlc_llm.protocol.mlc_chat_config import MLCChatConfig

MAX_CONFIG_BYTES = 16 * 2**20
CHAT_CONFIG_FILE = "mlc-chat-config.json"
GENERATION_CONFIG_FILE = "generation_config.json"


@record()
class ModelSettings:
    """What the files say of a model; the defaults stand for a model without such files."""

    sampling: GenerationConfig = field(default_factory=GenerationConfig)
    template: Conversation | None = None
    """The chat template that mlc-chat-config.json names."""
    prefers_template: bool = False
    """It comes before the one in the model's files."""
    stop_token_ids: frozenset[int] = frozenset()
    """The end-of-text tokens that any of the files names; they may lie outside the vocabulary."""
    context_window: int | None = None
    """Tokens of a prompt and its answer; None: the model decides."""
    sliding_window: int = -1
    """The tokens that a token sees; -1: all."""
    attention_sinks: int = 0

    def defaults(self, *, with_template: bool) -> GenerationConfig:
        """What is merged under every request's config. with_template: chats use `template`, which
        says at which texts an answer ends."""
        if not with_template or self.template is None or not self.template.stop_str:
            return self.sampling
        return GenerationConfig(stop_strs=self.template.stop_str).merged_over(self.sampling)


def settings_of_default_model() -> ModelSettings:
    """The values that the default model's card recommends.

    The model's file has none, and answers wander at temperature 1.
    """
    return ModelSettings(GenerationConfig(temperature=0.2, top_p=0.9))


def read_settings(folder: Path) -> ModelSettings:
    """The settings in a folder. mlc-chat-config.json comes before generation_config.json.

    Raises `ModelFileError` for a file that is broken or has a wrong value, `UnsupportedModel` for
    a chat template whose name is not known.
    """
    named = _chat_config(folder / CHAT_CONFIG_FILE)
    path = folder / GENERATION_CONFIG_FILE
    generation = read_json_object(path, MAX_CONFIG_BYTES, may_be_missing=True)
    stops = _stop_token_ids(generation)
    with _naming(path):
        sampling = GenerationConfig.model_validate(folder_sampling(generation))
        if named is None:
            return ModelSettings(sampling, stop_token_ids=stops)
        chat, template = named
        sampling = chat.default_generation_config().merged_over(sampling)
    return ModelSettings(
        sampling,
        template,
        chat.prefer_conv_template,
        stops.union(chat.eos_token_ids(), template.stop_token_ids),
        chat.context_window_size if chat.context_window_size > 0 else None,
        chat.sliding_window_size,
        max(chat.attention_sink_size, 0),
    )


def with_gguf(settings: ModelSettings, file: GGUFFile) -> ModelSettings:
    """With what the file says of sampling, where the settings say nothing of it. Raises
    ModelFileError for a wrong value."""
    with _naming(file.path):
        sampling = GenerationConfig.model_validate(gguf_sampling(file.metadata))
    return replace(settings, sampling=settings.sampling.merged_over(sampling))


def _chat_config(path: Path) -> tuple[MLCChatConfig, Conversation] | None:
    """What mlc-chat-config.json says, and the template that it names; None: no such file."""
    values = read_json_object(path, MAX_CONFIG_BYTES, may_be_missing=True)
    if not values:
        return None
    from mlc_llm.serve.opening import chat_config

    with _naming(path):
        chat = chat_config.MLCChatConfig.parse(values)
    return chat, chat_config.conversation(chat)


def _stop_token_ids(generation: dict[str, JsonValue]) -> frozenset[int]:
    """`eos_token_id` is a number or a list of numbers; anything else in it is passed over."""
    stated = generation.get("eos_token_id", [])
    ids = stated if isinstance(stated, list) else [stated]
    return frozenset(one for one in ids if isinstance(one, int) and not isinstance(one, bool))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """An error about a value becomes one about the file that has the value."""
    try:
        yield
    except UserError as error:
        raise ModelFileError(f"{path}: {error}") from None
