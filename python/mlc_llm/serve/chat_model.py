"""What requests of OpenAI's API need of an engine that is open."""

from __future__ import annotations

from mlc_llm.serve.openai.requests import ChatModel
from mlc_llm.serve.opening.open_engine import OpenEngine


def chat_model_of(loaded: OpenEngine) -> ChatModel:
    """The parts of a loaded model that its requests need."""
    bundle, core = loaded.bundle, loaded.core
    return ChatModel(
        bundle.tokenizer,
        bundle.chat_template,
        bundle.defaults,
        core.longest_sequence,
        loaded.load_id,
        hidden_size=core.hidden_size,
        fingerprint=loaded.fingerprint,
        pooling=bundle.pooling,
        is_encoder=bundle.is_encoder,
        scores=bundle.scores,
        images=None if bundle.vision is None else bundle.vision.reader,
        adapters=core.adapters.names,
        ranking=bundle.ranking,
    )
