"""Models split over several GGUF files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from gguf_bytes import GGUFBytes, tensor, typed

from mlc_llm.errors import ModelFileError
from mlc_llm.loader.gguf import GGUFFile


def write_part(
    folder: Path,
    number: int,
    names: list[str],
    *,
    count: int = 3,
    total: int = 3,
    no: int | None = None,
) -> Path:
    """Part `number` (from 0) with one F32 tensor of 8 values for each of `names`."""
    keys = [
        ("split.no", typed("u16", number if no is None else no)),
        ("split.count", typed("u16", count)),
        ("split.tensors.count", typed("i32", total)),
    ]
    if number == 0:
        keys.append(("general.architecture", typed("str", "llama")))
    rows = [tensor(name, [8], 0, 32 * i) for i, name in enumerate(names)]
    raw = GGUFBytes(keys=keys, tensors=rows, data=bytes([number]) * 32 * len(names)).build()
    path = folder / f"m-{number + 1:05d}-of-{count:05d}.gguf"
    path.write_bytes(raw)
    return path


def three_parts(folder: Path) -> list[Path]:
    """The first part without tensors, as the public splitting tool may write it."""
    names: list[list[str]] = [[], ["a", "b"], ["c"]]
    return [write_part(folder, number, part) for number, part in enumerate(names)]


def test_joined(tmp_path: Path) -> None:
    parts = three_parts(tmp_path)
    file = GGUFFile.open(parts[0])
    assert [tensor.path for tensor in file.tensors.values()] == [parts[1], parts[1], parts[2]]
    assert file.get_str("general.architecture") == "llama"
    assert list(file.tensors) == ["a", "b", "c"]
    assert [int(t.data[0]) for t in file.tensors.values()] == [1, 1, 2]


def test_a_single_part_needs_no_special_name(tmp_path: Path) -> None:
    path = write_part(tmp_path, 0, ["a"], count=1, total=1).rename(tmp_path / "any.gguf")
    assert list(GGUFFile.open(path).tensors) == ["a"]


def test_a_merged_file(tmp_path: Path) -> None:
    """As llama-gguf-split writes it with --merge."""
    path = write_part(tmp_path, 0, ["a", "b"], count=0, total=2).rename(tmp_path / "merged.gguf")
    assert list(GGUFFile.open(path).tensors) == ["a", "b"]


def test_not_the_first_part(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"part 00002 of a model; open m-00001-of-00003.gguf"):
        GGUFFile.open(three_parts(tmp_path)[1])


def test_missing_part(tmp_path: Path) -> None:
    first, _, last = three_parts(tmp_path)
    last.unlink()
    with pytest.raises(ModelFileError, match=r"its part m-00003-of-00003.gguf is missing"):
        GGUFFile.open(first)


def test_renamed_first_part(tmp_path: Path) -> None:
    first = three_parts(tmp_path)[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match=r"must be named like NAME-00001-of-00003.gguf"):
        GGUFFile.open(first)


def test_foreign_part(tmp_path: Path) -> None:
    first, second, third = three_parts(tmp_path)
    shutil.copy(second, third)
    with pytest.raises(ModelFileError, match=r"00003-of-00003.gguf: split.no is 1, it should be 2"):
        GGUFFile.open(first)


def test_part_that_is_no_part(tmp_path: Path) -> None:
    first, second, _ = three_parts(tmp_path)
    second.write_bytes(GGUFBytes().build())
    with pytest.raises(ModelFileError, match=r"split.no is missing or not a whole number"):
        GGUFFile.open(first)


def test_tensor_in_two_parts(tmp_path: Path) -> None:
    first = three_parts(tmp_path)[0]
    write_part(tmp_path, 2, ["a"])
    with pytest.raises(ModelFileError, match=r"tensor 'a' is in two parts"):
        GGUFFile.open(first)


def test_tensor_lost(tmp_path: Path) -> None:
    first = three_parts(tmp_path)[0]
    write_part(tmp_path, 2, [])
    with pytest.raises(ModelFileError, match=r"split.tensors.count is 3, the parts hold 2"):
        GGUFFile.open(first)


def test_absurd_count(tmp_path: Path) -> None:
    first = write_part(tmp_path, 0, ["a"], count=60_000)
    with pytest.raises(ModelFileError, match=r"split.count is 60000; 1 to 1024"):
        GGUFFile.open(first)
