"""A model of Transformers as a GGUF file, written by llama.cpp's own converter.

The converter is no package: MLC_LLM_LLAMA_CPP names a folder of llama.cpp's sources. It runs in a
process of its own, because it brings its own gguf package. It writes no vocabulary.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

FOLDER = "MLC_LLM_LLAMA_CPP"
needs_converter = pytest.mark.skipif(
    FOLDER not in os.environ, reason=f"{FOLDER} does not name a folder of llama.cpp's sources"
)


def converted(model: Any, folder: Path, **fields: Any) -> Path:
    """`model.gguf` in a folder, beside the files that Transformers saves. fields: what the
    converter reads beside them, as older versions of Transformers wrote it."""
    model.save_pretrained(folder)
    vocabulary = {str(i): i for i in range(VOCABULARY_SIZE)}  # Gemma's converter counts it
    words = json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []})
    (folder / "tokenizer.json").write_text(words, encoding="utf-8")
    path = folder / "model.gguf"
    command = [sys.executable, __file__, str(folder), str(path), json.dumps(fields)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return path


def _convert(folder: Path, path: Path, fields: dict[str, Any]) -> None:
    """In a process of its own."""
    source = Path(os.environ[FOLDER])
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    architecture = get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT)
    model = get_model_class(architecture)(folder, gguf.LlamaFileType.ALL_F32, path)
    for one in (model, getattr(model, "impl", model)):
        one.set_vocab = lambda: None
        one.hparams |= fields
    model.write()


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
