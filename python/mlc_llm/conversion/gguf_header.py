"""The metadata of a GGUF file that is made of a Hugging Face folder.

Keys and values are those that llama.cpp's convert_hf_to_gguf.py writes, but for what it guesses of
names: of the keys `general.*` there are the type, the folder's name and those of sampling. What was
made is read again as a model: if that is another model than the folder's, nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace

import numpy as np

from mlc_llm.conversion.gguf_entries import Value, entry, text_entry
from mlc_llm.conversion.gguf_fields import CLASSES, Class, text_config
from mlc_llm.conversion.gguf_vocabulary import vocabulary_entries
from mlc_llm.errors import MLCError, UnsupportedModel
from mlc_llm.json_file import read_json_object
from mlc_llm.loader.gguf_metadata import RawEntry
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files import sampling
from mlc_llm.model_files.folder_texts import MAX_BYTES
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.models.registry import architecture_of, read_gguf
from mlc_llm.models.spec import ModelSpec

_NEAR = 2e-6
"""Relative difference of numbers that are float32 in the file."""


def class_of(files: HuggingFaceModel) -> Class:
    """How files of the folder's class are written. Raises UnsupportedModel."""
    name = architecture_of(files.folder.config).config
    if name not in CLASSES:
        raise UnsupportedModel(
            f"a .gguf file of {name} is not written yet; of these it is: {', '.join(CLASSES)}; "
            "llama.cpp's convert_hf_to_gguf.py writes others"
        )
    return CLASSES[name]


def metadata_of(files: HuggingFaceModel, tensors: Mapping[str, Tensor]) -> dict[str, RawEntry]:
    """All entries but those of the tensors' types. tensors: of the new file. Raises
    UnsupportedModel for a model of which such a file cannot say everything; ModelFileError."""
    spec, config = files.plan().spec, text_config(files.folder.config)
    found: dict[str, Value] = {}
    way = class_of(files)
    for make in way.fields:
        found |= make(spec, config)
    name = spec.architecture
    own: dict[str, Value] = {f"{name}.{key}": value for key, value in found.items()}
    said = spec if way.says is None else way.says(spec)
    _check_same({"general.architecture": name, **own}, tensors, said)
    return {
        "general.architecture": text_entry(name),
        "general.type": text_entry("model"),
        "general.name": text_entry(files.path.resolve().name),
        **{key: entry(value) for key, value in {**own, **_sampling(files)}.items()},
        **vocabulary_entries(files.path, spec.vocab),
    }


def _sampling(files: HuggingFaceModel) -> Mapping[str, Value]:
    """Raises ModelFileError."""
    path = files.path / sampling.FILE
    return sampling.sampling_keys(read_json_object(path, MAX_BYTES, may_be_missing=True))


def _check_same(
    metadata: Mapping[str, object], tensors: Mapping[str, Tensor], spec: ModelSpec
) -> None:
    """Raises UnsupportedModel if the metadata and the tensors say another model than the spec."""
    try:
        read = read_gguf(metadata, tensors).spec
    except MLCError as error:
        raise UnsupportedModel(f"a .gguf file of {spec.architecture}: {error}") from None
    for path, one, other in _differences(_plain(spec, tensors), _plain(read, tensors), ""):
        raise UnsupportedModel(
            f"a .gguf file of {spec.architecture} cannot say {path} = {str(one)[:60]}; "
            f"it would be read as {str(other)[:60]}"
        )


def _plain(spec: ModelSpec, tensors: Mapping[str, Tensor]) -> ModelSpec:
    """Without the types of tensors, and with the divisors of frequencies as numbers."""

    def numbers(given: str | tuple[float, ...] | None) -> tuple[float, ...] | None:
        if isinstance(given, str):
            return tuple(tensors[given].data.view("<f4").tolist())
        return given

    ropes = tuple(
        replace(one, factors=numbers(one.factors), long_factors=numbers(one.long_factors))
        for one in spec.ropes
    )
    return replace(spec, kinds={}, ropes=ropes, active_vocab=None)


def _differences(one: object, other: object, path: str) -> Iterator[tuple[str, object, object]]:
    """Where two values differ: the path of the field, and both."""
    if is_dataclass(one) and not isinstance(one, type) and type(one) is type(other):
        for field in fields(one):
            inner = f"{path}.{field.name}" if path else field.name
            yield from _differences(getattr(one, field.name), getattr(other, field.name), inner)
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for i, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences(*pair, f"{path}[{i}]")
    elif isinstance(one, float) and isinstance(other, (int, float)):
        if not np.isclose(one, other, rtol=_NEAR, atol=0):
            yield path, one, other
    elif one != other:
        yield path, one, other
