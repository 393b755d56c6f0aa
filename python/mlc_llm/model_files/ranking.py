"""What the files of decoders that rank documents say of it.

Formats: GGUF as llama.cpp's converter writes Qwen3-Reranker (`Qwen3Model` in conversion/qwen.py,
`LLAMA_POOLING_TYPE_RANK` in llama-graph.cpp): the rows of "yes" and "no" of the head, and a named
template. Folders of `Qwen3ForSequenceClassification` of Transformers with one label: its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.pooling import gguf_pooling
from mlc_llm.models.registry import RANKERS
from mlc_llm.models.weight_plan import FLOAT_KINDS
from mlc_llm.ranking import DOCUMENT, QUERY, Ranking

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np

RANK = "rank"
"""The pooling of these models."""
GGUF_ROWS, FOLDER_ROWS = "cls.output.weight", "score.weight"
GGUF_TEMPLATE = "tokenizer.chat_template.rerank"
LABELS = ["yes", "no"]
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
QWEN3_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    f"<|im_start|>user\n<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {DOCUMENT}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The prompt of Qwen3-Reranker. No file of a folder has it."""


def ranks(metadata: Mapping[str, object], tensors: Mapping[str, Tensor]) -> bool:
    """Whether the model of a GGUF file is a decoder that ranks documents. Raises ModelFileError."""
    known = {row.gguf for row in RANKERS}
    if metadata.get("general.architecture") not in known or GGUF_ROWS not in tensors:
        return False
    return gguf_pooling(metadata) == RANK


def gguf_ranking(
    metadata: Mapping[str, object], tensors: Mapping[str, Tensor], hidden: int
) -> Ranking:
    """Of a file that `ranks`. Raises ModelFileError, UnsupportedModel."""
    key = f"{metadata.get('general.architecture')}.classifier.output_labels"
    labels = metadata.get(key)
    if labels != LABELS:
        raise UnsupportedModel(f"{key} is {str(labels)[:60]}; a model that ranks has {LABELS}")
    template = metadata.get(GGUF_TEMPLATE)
    if not isinstance(template, str):
        raise ModelFileError(f"there is no {GGUF_TEMPLATE}, the prompt of a model that ranks")
    for place in (QUERY, DOCUMENT):
        if place not in template:
            raise ModelFileError(f"{GGUF_TEMPLATE} has no place for {place}")
    yes, no = _rows(tensors[GGUF_ROWS], (len(LABELS), hidden))
    return Ranking(template, yes - no)


def folder_ranking(tensors: Mapping[str, Tensor], hidden: int) -> Ranking:
    """tensors: by the names of the folder. Raises ModelFileError, UnsupportedModel."""
    if FOLDER_ROWS not in tensors:
        raise ModelFileError(f"there is no tensor {FOLDER_ROWS}")
    tensor = tensors[FOLDER_ROWS]
    if tensor.kind not in FLOAT_KINDS:
        raise UnsupportedModel(f"tensor {FOLDER_ROWS} of type {tensor.kind}")
    (row,) = _rows(tensor, (1, hidden))
    return Ranking(QWEN3_TEMPLATE, row)


def _rows(tensor: Tensor, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    from mlc_llm.quantization.ggml_blocks import dequantize

    if tuple(tensor.shape) != shape:
        words = f"tensor {tensor.name} has shape {tuple(tensor.shape)}, expected {shape}"
        raise UnsupportedModel(f"{words}: a model that ranks gives one score to a document")
    found = dequantize(tensor.kind, tensor.data, shape).astype(np.float32)
    if not np.isfinite(found).all():
        raise ModelFileError(f"tensor {tensor.name} has numbers that are not finite")
    return found
