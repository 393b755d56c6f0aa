"""What Ollama's clients are told that a model can do."""

from __future__ import annotations

from typing import Any

import pytest

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.openai.model import ChatModel
from mlc_llm.serve.server.routes.model_facts import _capabilities

CHANNELS = "<|channel|>analysis{{ tools }} to=functions."
TEMPLATES = {
    "{{ messages }}": ["completion"],
    "{{ messages }}{{ tools }}": ["completion", "tools"],
    "{{ enable_thinking }}": ["completion", "thinking"],
    "{{ message.content.split('</think>')[-1] }}": ["completion", "thinking"],
    "[THINK]{{ thinking }}[/THINK]": ["completion", "thinking"],
    CHANNELS: ["completion", "tools", "thinking"],
}


@pytest.mark.parametrize("source", TEMPLATES)
def test_capabilities(source: str) -> None:
    tokenizer: Any = None
    model = ChatModel(tokenizer, ChatTemplate(source), GenerationConfig(), 100, 1)
    assert _capabilities(model) == TEMPLATES[source]
