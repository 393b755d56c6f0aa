"""`MLCChatConfig`: the file mlc-chat-config.json beside a model's weights."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo

from mlc_llm.protocol import checks
from mlc_llm.protocol.base import OpenModel
from mlc_llm.protocol.checks import MAX_INT32
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.generation_rules import RULES

MLC_CHAT_CONFIG_VERSION = "0.1.0"
MAX_EOS_TOKENS = 1024


def _size(value: object, info: ValidationInfo) -> int:
    return checks.integer(str(info.field_name), value, -1, MAX_INT32)


def _rule(name: str) -> BeforeValidator:
    return BeforeValidator(lambda value: RULES[name](name, value))


def _vocabulary(value: object, info: ValidationInfo) -> int:
    return checks.integer(str(info.field_name), value, 1, MAX_INT32)


def _token_id(value: object, info: ValidationInfo) -> int:
    allowed = f"should be a token id in [0, {MAX_INT32}], or -1 for none"
    return checks.integer(str(info.field_name), value, -1, MAX_INT32, allowed)


def _token_ids(value: object, info: ValidationInfo) -> int | list[int]:
    if isinstance(value, list):
        return checks.token_ids(str(info.field_name), value, MAX_EOS_TOKENS)
    return _token_id(value, info)


TokenId = Annotated[int, BeforeValidator(_token_id)]
TokenIds = Annotated[int | list[int], BeforeValidator(_token_ids)]
Vocabulary = Annotated[int, BeforeValidator(_vocabulary)]
Size = Annotated[int, BeforeValidator(_size)]
"""-1 turns the feature off."""

_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


class MLCChatConfig(OpenModel):
    """How a model is built, tokenised, prompted and sampled by default."""

    version: str = MLC_CHAT_CONFIG_VERSION
    model_type: str
    quantization: str
    model_config_: dict[str, object] = Field(default_factory=dict, alias="model_config")
    """The settings of the architecture."""
    vocab_size: Vocabulary
    active_vocab_size: Vocabulary | None = None
    """The tokens without padding. None: there is no padding."""
    context_window_size: Size = -1
    sliding_window_size: Size = -1
    prefill_chunk_size: Size = -1
    attention_sink_size: Size = -1
    tensor_parallel_shards: Size = 1
    pipeline_parallel_stages: Size = 1
    temperature: Annotated[float, _rule("temperature")] = 1.0
    top_p: Annotated[float, _rule("top_p")] = 1.0
    presence_penalty: Annotated[float, _rule("presence_penalty")] = 0.0
    frequency_penalty: Annotated[float, _rule("frequency_penalty")] = 0.0
    repetition_penalty: Annotated[float, _rule("repetition_penalty")] = 1.0
    pad_token_id: TokenId = 0
    bos_token_id: TokenId = 1
    eos_token_id: TokenIds = 2
    tokenizer_files: list[str] = Field(default_factory=list)
    tokenizer_info: dict[str, object] | None = None
    conv_template: str | Conversation
    """A registered name, or the template itself."""
    prefer_conv_template: bool = False
    """Use it even if the tokenizer's files have a template. Our own field."""
    model_task: str = "chat"
    embedding_metadata: dict[str, object] | None = None

    def eos_token_ids(self) -> frozenset[int]:
        """All end-of-text ids of the file."""
        ids = self.eos_token_id
        return frozenset([ids] if isinstance(ids, int) else ids)

    def default_generation_config(self) -> GenerationConfig:
        """The sampling values that the file sets. They are the defaults of requests."""
        given = {name: getattr(self, name) for name in _SAMPLING if name in self.model_fields_set}
        return GenerationConfig(**given)
