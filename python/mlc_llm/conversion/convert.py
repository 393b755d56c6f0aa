"""Converts a model's weights: to a folder of MLC LLM, or to a GGUF file of other tensor types."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.conversion.awq_params import awq_params
from mlc_llm.conversion.chat_config import check_template, write_chat_config
from mlc_llm.conversion.gguf_entries import uint32_entry
from mlc_llm.conversion.gguf_source import GGUFSource, gguf_source
from mlc_llm.conversion.gguf_writer import NewTensor, header_bytes, write_gguf
from mlc_llm.conversion.mlc_params import mlc_params
from mlc_llm.conversion.output import check_free, new_file, new_output
from mlc_llm.conversion.shards import ShardWriter
from mlc_llm.errors import UnsupportedModel
from mlc_llm.loader.gguf_metadata import RawEntry
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.quantized import check_rows, target_of
from mlc_llm.model_files.row_pieces import Rows, weighed_pieces
from mlc_llm.models.sources import Source
from mlc_llm.quantization.block_format import Floats
from mlc_llm.quantization.ggml_quantize import K_TYPES, WEIGHTED, quantize, quantize_weighted
from mlc_llm.quantization.group_schemes import Scheme
from mlc_llm.quantization.names import AWQ, FOLDERS, changes, check_name
from mlc_llm.quantization.scale_search import NUMPY, Searches
from mlc_llm.support.progress import Progress

Show = Callable[[str, "float | None"], AbstractContextManager[Progress]]
FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_K": 14,
    "Q5_K": 16, "Q6_K": 18, "BF16": 32,
}  # fmt: skip
"""`general.file_type` of GGUF files (`llama_ftype` in llama.h)."""


class Converted(NamedTuple):
    """What was made: a path, and its bytes of weights a number of the model."""

    path: Path
    bits: float


def convert_weight(
    files: ModelFiles,
    quantization: str,
    output: Path,
    show: Show,
    *,
    template: str | None = None,
    importance: Mapping[str, Floats] = {},
) -> Converted:
    """Quantise a model and write it.

    quantization: a name in `quantization/names.py`. One of MLC LLM's makes the folder `output`; one
    of GGUF's makes the file `output`, or a file in the folder `output` if it does not end with
    .gguf. Nothing is left behind by an error. template: see `write_chat_config`. importance: of the
    columns of matrices, for the names in `WEIGHTED` (`quantization/names.py`). Raises UserError,
    OSError.
    """
    check_name(quantization)
    check_template(template, quantization)
    check_free(output)
    if files.ranking() is not None:
        words = "is a model that ranks documents, which cannot be written in another format"
        raise UnsupportedModel(f"{files.path} {words}")
    files.check_sums()
    scheme = FOLDERS.get(quantization)
    if scheme is not None:
        return _to_folder(files, scheme, output, show, template=template, importance=importance)
    return _to_gguf(files, quantization.upper(), output, show, importance)


def _to_folder(
    files: ModelFiles,
    scheme: Scheme,
    output: Path,
    show: Show,
    *,
    template: str | None,
    importance: Mapping[str, Floats],
) -> Converted:
    plain = mlc_params(files.plan(), files.tensors, scheme, importance)
    params = awq_params(plain) if scheme is AWQ else plain
    values = sum(param.values for param in params)
    needed = sum(param.nbytes(scheme) for param in params)
    with new_output(output, needed=needed) as folder:
        write_chat_config(files, scheme.name, folder, template, {})
        with closing(ShardWriter(folder)) as writer, show("converting", values) as shown:
            for param in params:
                param.write(scheme, writer)
                shown.advance(param.values)
            writer.finish(values)
    return Converted(output, 8 * needed / values)


def _new_tensors(files: ModelFiles, source: GGUFSource, kind: str) -> list[NewTensor]:
    """The tensors of the new file. Raises UnsupportedModel for rows that are not whole blocks."""
    matrices = {s.tensor for found in files.plan().matrices.values() for s in found}
    made = []
    for name, tensor in source.tensors.items():
        changed = name in matrices and changes(kind.lower(), name)
        kept = "F32" if source.widens else tensor.kind
        made.append(NewTensor(name, tensor.shape, kind if changed else kept))
        if changed:
            check_rows(tensor, target_of(kind.lower()), kind.lower())
    return made


def _to_gguf(
    files: ModelFiles, kind: str, output: Path, show: Show, importance: Mapping[str, Floats]
) -> Converted:
    """The file `output`, or a file in the folder `output`."""
    source = gguf_source(files, importance)
    tensors = _new_tensors(files, source, kind)
    metadata = dict(source.metadata)
    metadata["general.file_type"] = uint32_entry(FILE_TYPES[kind])
    metadata["general.quantization_version"] = uint32_entry(2)
    needed = sum(one.nbytes for one in tensors) + header_bytes(metadata, tensors)
    if output.suffix == ".gguf":
        with new_file(output, needed=needed) as temporary:
            bits = _write(source, metadata, tensors, temporary, show)
        return Converted(output, bits)
    name = f"{files.path.resolve().name.removesuffix('.gguf')}-{kind.lower()}.gguf"
    with new_output(output, needed=needed) as folder:
        bits = _write(source, metadata, tensors, folder / name, show)
    return Converted(output / name, bits)


def _write(
    source: GGUFSource,
    metadata: Mapping[str, RawEntry],
    tensors: list[NewTensor],
    path: Path,
    show: Show,
) -> float:
    """Write the file. Returns the bits of a weight."""
    values = sum(math.prod(one.shape) for one in tensors)
    with show("converting", values) as shown:

        def made() -> Iterator[tuple[NewTensor, Iterator[npt.NDArray[np.uint8]]]]:
            for one in tensors:
                yield one, _bytes(source, one)
                shown.advance(math.prod(one.shape))

        write_gguf(path, metadata, tensors, made())
    return 8 * sum(one.nbytes for one in tensors) / values


def _bytes(source: GGUFSource, new: NewTensor) -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes of a new tensor; those of the old one, if it has the type already."""
    tensor, importance = source.tensors[new.name], source.importance.get(new.name)
    if tensor.kind == new.kind:
        yield np.ascontiguousarray(tensor.data)
        tensor.give_back()
        return
    if new.kind not in WEIGHTED:
        importance = None
    searches = NUMPY if importance is None and new.kind not in K_TYPES else _searches()
    for piece, own in weighed_pieces(Rows(tensor, Source(new.name, new.shape)), importance):
        if own is not None:
            yield quantize_weighted(new.kind, piece, own, searches)
        else:
            yield quantize(new.kind, piece, searches)


def _searches() -> Searches:
    """Compiled ones, if there are such for this processor. They load TVM's compiler."""
    from mlc_llm.backends.cpu.k_searches import compiled_searches

    return compiled_searches() or NUMPY
