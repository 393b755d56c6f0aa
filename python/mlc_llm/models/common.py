"""What reading any architecture out of a file begins with."""

from __future__ import annotations

from mlc_llm.errors import ModelFileError
from mlc_llm.models.gguf_values import GGUFValues
from mlc_llm.models.weight_plan import Tensors


def check_layer_count(values: GGUFValues, tensors: Tensors) -> int:
    """Number of layers, which a file cannot have more of than tensors. Raises ModelFileError."""
    layers = values.count("block_count")
    if layers > len(tensors):
        raise ModelFileError(
            f"{values.architecture}.block_count is {layers}; the file has {len(tensors)} tensors"
        )
    return layers


def embedding_rows(tensors: Tensors) -> int:
    """Tokens of the embedding table. Raises ModelFileError."""
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError("there is no tensor token_embd.weight")
    return embedding.shape[0]
