"""Small pure functions that all front ends share."""

from __future__ import annotations

import uuid

from mlc_llm.protocol.chat_parameters import AnyParameters
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest
from mlc_llm.serve.prompts import convert_prompts_to_data

__all__ = [
    "convert_prompts_to_data",
    "openai_api_get_generation_config",
    "random_uuid",
    "request_id_of",
]


def random_uuid() -> str:
    """32 random hexadecimal digits."""
    return uuid.uuid4().hex


def request_id_of(parameters: AnyParameters, kind: str) -> str:
    """The id that the arguments of `create` give, or a new one that begins with `kind`."""
    given = parameters.get("request_id")
    return f"{kind}-{random_uuid()}" if given is None else given


def openai_api_get_generation_config(
    request: ChatCompletionRequest | CompletionRequest,
) -> GenerationConfig:
    """The fields of a request that concern sampling and stopping."""
    return request.generation_config()
