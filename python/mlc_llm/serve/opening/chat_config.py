"""What mlc-chat-config.json means. Only a model with such a file loads this: it takes pydantic."""

from __future__ import annotations

from mlc_llm.conversation_template.registry import ConvTemplateRegistry
from mlc_llm.errors import UnsupportedModel
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.mlc_chat_config import MLCChatConfig

__all__ = ["PLAIN_TEMPLATE", "MLCChatConfig", "conversation"]

PLAIN_TEMPLATE = Conversation(
    name="echo",
    system_template="{function_string}{system_message}",
    roles={"user": "", "assistant": "", "tool": ""},
    seps=[""],
)
"""The echo engine's chat template."""


def conversation(chat: MLCChatConfig) -> Conversation:
    """The template of a config. Raises `UnsupportedModel` for a name that is not known."""
    if isinstance(chat.conv_template, Conversation):
        return chat.conv_template
    named = ConvTemplateRegistry.get_conv_template(chat.conv_template)
    if named is None:
        known = ", ".join(ConvTemplateRegistry.names())
        raise UnsupportedModel(f"conv_template {chat.conv_template!r} is not known; known: {known}")
    return named
