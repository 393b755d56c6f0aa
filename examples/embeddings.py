"""Vectors of texts. A model for chats, as here, compares texts only roughly, and does so only with
`pooling`: name an encoder (BGE, Nomic, Gemma Embedding) or Qwen3 Embedding."""

from typing import Any

from mlc_llm import MLCEngine

TEXTS = ["The cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose again."]

with MLCEngine(engine_config={"pooling": "last_token"}) as engine:
    found = engine.embeddings.create(input=TEXTS)
    vectors: list[Any] = [one.embedding for one in found.data]
    print(f"{len(vectors)} vectors of {len(vectors[0])} numbers")
    for text, vector in zip(TEXTS[1:], vectors[1:], strict=True):
        likeness = sum(a * b for a, b in zip(vectors[0], vector, strict=True))
        print(f"{likeness:.3f} {text}")
