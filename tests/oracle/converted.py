"""A model of Transformers as a GGUF file, written by llama.cpp's own converter.

The converter is no package: MLC_LLM_LLAMA_CPP names a folder of llama.cpp's sources. It runs in a
process of its own, because it brings its own gguf package. In place of the vocabulary of a folder,
which random models lack, it writes that of the byte tokenizer.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE, byte_tokenizer_metadata

FOLDER = "MLC_LLM_LLAMA_CPP"
needs_converter = pytest.mark.skipif(
    FOLDER not in os.environ, reason=f"{FOLDER} does not name a folder of llama.cpp's sources"
)


def converted(model: Any, folder: Path, **fields: Any) -> Path:
    """`model.gguf` in a folder, without a vocabulary, beside the files that Transformers saves.
    fields: what the converter reads beside them, as older versions of Transformers wrote it."""
    model.save_pretrained(folder)
    vocabulary = {str(i): i for i in range(VOCABULARY_SIZE)}  # Gemma's converter counts it
    model_of_words = {"type": "WordPiece", "vocab": vocabulary}  # Nomic BERT's looks at the type
    words = json.dumps({"model": model_of_words, "added_tokens": []})
    (folder / "tokenizer.json").write_text(words, encoding="utf-8")
    path = folder / "model.gguf"
    _in_the_process(folder, path, fields)
    return path


def converted_folder(folder: Path, path: Path, file_type: str, rule: str) -> Path:
    """A folder with a tokenizer as a GGUF file. file_type: a name of `LlamaFileType`. rule: of
    cutting words; the converter knows published vocabularies alone."""
    _in_the_process(folder, path, {}, file_type, rule)
    return path


def converted_eyes(folder: Path, vocabulary: dict[str, Any]) -> tuple[Path, Path]:
    """The language model and the tower of a folder that has both, as two files: `model.gguf` with a
    vocabulary, and `mmproj.gguf`."""
    model, tower = folder / "model.gguf", folder / "mmproj.gguf"
    _in_the_process(folder, model, {}, "ALL_F32", "", vocabulary, False)
    _in_the_process(folder, tower, {}, "ALL_F32", "", None, True)
    return model, tower


def _in_the_process(*given: Any) -> None:
    """`_convert`. Raises AssertionError with the end of what the process says."""
    error = _process().submit(_convert, *given).exception()
    assert error is None, "".join(traceback.format_exception(error))[-3000:]


@cache
def _process() -> ProcessPoolExecutor:
    """It is kept, because it loads for seconds what the converter needs."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _convert(
    folder: Path,
    path: Path,
    fields: dict[str, Any],
    file_type: str = "ALL_F32",
    rule: str = "",
    *tower: Any,
) -> None:
    """In a process of its own. It writes a vocabulary if a file type is given. tower: the
    vocabulary, where it is another one, and whether the tower of images is meant."""
    vocabulary, is_tower = tower or (None, False)
    source = os.environ[FOLDER]
    if source not in sys.path:
        sys.path[:0] = [source, os.path.join(source, "gguf-py")]
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    kind = ModelType.MMPROJ if is_tower else ModelType.TEXT
    architecture = get_model_architecture(ModelBase.load_hparams(folder, False), kind)
    of_class = get_model_class(architecture, mmproj=is_tower)
    of_class.no_mtp = True  # random models have no head that drafts tokens
    if hasattr(of_class, "lerp_weights"):  # RWKV's class keeps those of the model before
        of_class.lerp_weights = {}
    model = of_class(folder, gguf.LlamaFileType[file_type], path)
    for one in (model, getattr(model, "impl", model)):
        if file_type == "ALL_F32":
            one.set_vocab = partial(_add_vocabulary, one.gguf_writer, vocabulary)
        one.get_vocab_base_pre = lambda tokenizer: rule
        one.hparams |= fields
    model.write()


def _add_vocabulary(writer: Any, vocabulary: dict[str, Any] | None = None) -> None:
    """writer: of the converter's gguf package. vocabulary: None is that of the byte tokenizer."""
    size = f"{writer.arch}.vocab_size"
    if size not in writer.kv_data[0]:
        writer.add_uint32(size, VOCABULARY_SIZE)
    for key, value in (vocabulary or byte_tokenizer_metadata()).items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}
        add.get(type(value), writer.add_array)(key, value)
