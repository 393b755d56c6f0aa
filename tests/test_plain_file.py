"""Files of models that are no files: a pipe is not waited for, a device is not read for ever."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mlc_llm.conversion.importance import read_importance
from mlc_llm.errors import InvalidField, MLCError, ModelFileError
from mlc_llm.json_file import read_json_object
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.huggingface import HuggingFaceFolder
from mlc_llm.loader.mlc_shards import MLCShards
from mlc_llm.loader.safetensors_file import SafetensorsFile
from mlc_llm.model_files.folder_texts import folder_template
from mlc_llm.plain_file import read_plain
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.server.limits.tenants import read_keys
from mlc_llm.tokenizers.spm_model import read_model
from mlc_llm.tokenizers.text_lines import read_lines

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other pipes")

READERS: dict[str, Callable[[Path], object]] = {
    "GGUF": GGUFFile.open,
    "a model": lambda path: open_model(str(path)),
    "safetensors": SafetensorsFile.open,
    "JSON": lambda path: read_json_object(path, 100),
    "JSON that may be missing": lambda path: read_json_object(path, 100, may_be_missing=True),
    "SentencePiece": read_model,
    "lines": lambda path: read_lines(path, 100),
    "imatrix": lambda path: read_importance(path, None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_refused_at_once(reader: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "here"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(MLCError, match=r"here: (cannot be read: )?not a regular file$"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", ["GGUF", "a model", "safetensors", "JSON"])
def test_a_name_that_no_file_can_have(reader: str) -> None:
    with pytest.raises(MLCError, match=r"(?i)no such file"):
        READERS[reader](Path("a\0b"))


def test_a_shard_that_is_a_pipe(tmp_path: Path) -> None:
    shard = '{"dataPath": "p.bin", "nbytes": 0, "records": []}'
    (tmp_path / "tensor-cache.json").write_text(f'{{"records": [{shard}]}}')
    os.mkfifo(tmp_path / "p.bin")
    with pytest.raises(ModelFileError, match=r"p\.bin: not a regular file$"):
        MLCShards.open(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_link_that_leads_nowhere_is_not_passed_over(name: str, tmp_path: Path) -> None:
    """Such as in a folder of another program's downloads, of which a part was removed."""
    (tmp_path / name).symlink_to(tmp_path / "removed")
    with pytest.raises(ModelFileError, match=rf"{name}: No such file or directory$"):
        folder_template(tmp_path)


def test_an_error_names_its_file_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(MLCError) as caught:
        HuggingFaceFolder.open(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'model.safetensors'}: Is a directory"
    (tmp_path / "broken.safetensors").write_bytes(bytes(20))
    with pytest.raises(MLCError) as caught:
        SafetensorsFile.open(tmp_path / "broken.safetensors")
    assert str(caught.value).count("broken.safetensors") == 1


def test_no_more_is_read_than_is_allowed() -> None:
    with pytest.raises(OSError, match="larger than 10 bytes"):
        read_plain(Path("/proc/self/status"), 10)  # it says that it has 0 bytes
    assert read_plain(Path("/proc/self/status"), 1 << 20).startswith(b"Name:")


def test_keys_come_from_a_pipe_and_have_an_end(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a-key\r\n# a note\nanother\n")
    os.close(writing)
    assert len(read_keys([], Path(f"/dev/fd/{reading}"))) == 2
    os.close(reading)
    with pytest.raises(InvalidField, match="at most 1 MB"):
        read_keys([], Path("/dev/zero"))
