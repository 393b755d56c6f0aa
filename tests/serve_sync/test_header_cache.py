"""What is kept of a header: the same model comes of it, and only while the file is the same."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.gguf_cursor import Cursor
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.serve.opening import header_cache
from mlc_llm.serve.opening.bundle import ModelBundle, open_model
from mlc_llm.serve.opening.header_cache import kept_head
from mlc_llm.support.files import cache_root
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "home"))
    write_tiny_model(tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def file_of(bundle: ModelBundle) -> GGUFFile:
    assert isinstance(bundle.files, GGUFModel)
    return bundle.files.file


def test_a_model_opened_again_is_the_same(model: Path) -> None:
    assert kept_head(model) is None
    first = open_model(str(model))
    head = kept_head(model)
    file = file_of(first)
    assert head is not None and head.passed == file.list_ends
    again = open_model(str(model))
    assert dict(file_of(again).metadata) == dict(file.metadata)
    assert file_of(again).tensors.keys() == file.tensors.keys()
    assert again.tokenizer.encode("hello é") == first.tokenizer.encode("hello é")
    assert again.stop_token_ids == first.stop_token_ids


def test_a_model_opened_again_decodes_no_vocabulary(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_model(str(model))
    decoded: list[int] = []
    strings = Cursor.strings

    def counted(self: Cursor, count: int) -> list[str]:
        decoded.append(count)
        return strings(self, count)

    monkeypatch.setattr(Cursor, "strings", counted)
    open_model(str(model))
    assert decoded and max(decoded) == 1


def test_a_damaged_note_is_read_anew(model: Path) -> None:
    open_model(str(model))
    (note,) = (cache_root() / "kept").iterdir()
    note.write_bytes(note.read_bytes()[:-1] + b"!")
    assert kept_head(model) is None
    open_model(str(model))
    assert kept_head(model) is not None


def test_another_vocabulary_of_the_same_size_and_time(model: Path) -> None:
    open_model(str(model))
    stat = model.stat()
    raw = model.read_bytes()
    place = raw.index(b"<|im_end|>")
    model.write_bytes(raw[:place] + b"<|im_END|>" + raw[place + 10 :])
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert model.stat().st_size == stat.st_size
    assert kept_head(model) is None
    assert "<|im_END|>" in open_model(str(model)).tokenizer.special_tokens


def test_copies_share_what_is_kept(model: Path, tmp_path: Path) -> None:
    open_model(str(model))
    copy = tmp_path / "elsewhere" / "copy.gguf"
    copy.parent.mkdir()
    shutil.copyfile(model, copy)
    assert kept_head(copy) is not None
    open_model(str(copy))
    assert len(list((cache_root() / "kept").iterdir())) == 1


def test_a_file_replaced_while_it_is_opened_is_read_as_it_is(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_model(str(model))
    other = write_tiny_model(model.with_name("other"), shape=TinyShape(layers=3))

    def replaced(path: Path) -> object:
        head = kept_head(path)
        other.replace(model)
        return head

    monkeypatch.setattr(header_cache, "kept_head", replaced)
    found = header_cache.open_with_head(model)
    assert found.head is None and "blk.2.attn_q.weight" in found.tensors
