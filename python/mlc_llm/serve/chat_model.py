"""What requests of OpenAI's API need of an engine that is open."""

from __future__ import annotations

from mlc_llm.serve.openai.requests import ChatModel
from mlc_llm.serve.opening.open_engine import OpenEngine


def chat_model_of(loaded: OpenEngine) -> ChatModel:
    """The parts of a loaded model that its requests need."""
    bundle, longest = loaded.bundle, loaded.core.longest_sequence
    return ChatModel(
        bundle.tokenizer, bundle.chat_template, bundle.defaults, longest, loaded.load_id
    )
