"""Broken and hostile GGUF files: each refused with a reason, never anything else."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf_bytes import GGUFBytes, array, small, string, tensor, typed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlc_llm.errors import MLCError, ModelFileError, UnsupportedModel
from mlc_llm.loader.gguf import GGUFFile

U64 = struct.Struct("<Q").pack


def keys(*entries: tuple[str | bytes, bytes], **fields: int) -> bytes:
    return GGUFBytes(keys=list(entries), **fields).build()


def tensors(*rows: bytes, data: int = 256, **fields: object) -> bytes:
    return GGUFBytes(tensors=list(rows), data=bytes(data), **fields).build()


def raw_array(kind: int, count: int, body: bytes = b"") -> bytes:
    return struct.pack("<IIQ", 9, kind, count) + body


def nested(depth: int) -> bytes:
    inner = struct.pack("<IQ", 9, 1) * (depth - 1) + struct.pack("<IQ", 0, 0)
    return struct.pack("<I", 9) + inner


WHOLE = small().build()
ROW = tensor("a", [4], 0, 0)

BROKEN: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "the file is empty"),
    "one byte": (b"G", "magic lies beyond the end"),
    "wrong magic": (b"GGML" + WHOLE[4:], "not a GGUF file"),
    "only magic": (b"GGUF", "version lies beyond the end"),
    "version 1": (b"GGUF" + struct.pack("<I", 1) + WHOLE[8:], "version 1 is not supported"),
    "version 4": (b"GGUF" + struct.pack("<I", 4) + WHOLE[8:], "version 4 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + WHOLE[8:], "big-endian"),
    "no counts": (WHOLE[:12], "number of tensors lies beyond the end"),
    "million keys": (keys(key_count=10**6), "metadata keys is 1000000; at most"),
    "2^63 tensors": (keys(tensor_count=2**63), "number of tensors is 9223372036854775808"),
    "more keys than bytes": (keys(key_count=4000), "metadata keys is 4000, which lies beyond"),
    "more tensors than bytes": (keys(tensor_count=30000), "tensors is 30000, which lies beyond"),
    "one key too many": (keys(("k", typed("u32", 1)), key_count=2), "metadata key 1"),
    "key of 2^40 bytes": (
        keys(key_count=1)[:24] + U64(2**40) + bytes(99),
        "length of metadata key 0 is 1099511627776",
    ),
    "empty key": (keys(("", typed("u32", 1))), "metadata key 0 is empty"),
    "key not UTF-8": (keys((b"\xff\xfe", typed("u32", 1))), "is not UTF-8"),
    "key twice": (keys(("k", typed("u32", 1)), ("k", typed("u32", 1))), "'k' occurs twice"),
    "unknown value type": (keys(("k", struct.pack("<I", 77))), "'k' has the unknown type 77"),
    "string of 2^63 bytes": (keys(("k", struct.pack("<IQ", 8, 2**63))), "length of metadata value"),
    "string beyond the end": (keys(("k", struct.pack("<IQ", 8, 5000))), "lies beyond the end"),
    "array of 2^40 items": (keys(("k", raw_array(0, 2**40))), "is 1099511627776; at most"),
    "array beyond the end": (keys(("k", raw_array(10, 1000))), "is 1000, which lies beyond"),
    "array of unknown type": (keys(("k", raw_array(13, 1))), "items of the unknown type 13"),
    "array of long strings": (keys(("k", raw_array(8, 2, string("a") + U64(2**62)))), r"\[1\]"),
    "array of short strings": (
        keys(("k", raw_array(8, 6, string("a" * 99) * 2))),
        r"\[[345]\] lies beyond",
    ),
    "arrays too deep": (keys(("k", nested(9))), "nests arrays more than 4 deep"),
    "many nested arrays": (
        keys(("k", raw_array(9, 10**6, bytes(12 * 10**6)))),
        "is 1000000; at mo",
    ),
    "truth value 2": (keys(("k", typed("bool", 2))), "a truth value other than 0 and 1"),
    "truth values 0 1 9": (keys(("k", array("bool", [0, 1, 9]))), "a truth value other than"),
    "alignment 0": (keys(("general.alignment", typed("u32", 0))), "alignment is 0; it must be"),
    "alignment 48": (keys(("general.alignment", typed("u32", 48))), "must be a power of two"),
    "alignment 2^31": (keys(("general.alignment", typed("u32", 2**31))), "must be a power of two"),
    "alignment as text": (
        keys(("general.alignment", typed("str", "32"))),
        "not of the type uint32",
    ),
    "tensor without name": (tensors(tensor("", [4], 0, 0)), "name of tensor 0 is empty"),
    "tensor name not UTF-8": (tensors(tensor(b"\xff", [4], 0, 0)), "is not UTF-8"),
    "tensor name too long": (tensors(tensor("n" * 999, [4], 0, 0)), "name of tensor 0 is 999"),
    "tensor twice": (tensors(ROW, tensor("a", [4], 0, 32)), "tensor 'a' occurs twice"),
    "no dimensions": (tensors(tensor("a", [], 0, 0)), "0 dimensions; 1 to 4"),
    "2^32-1 dimensions": (tensors(string("a") + b"\xff" * 4), "4294967295 dimensions"),
    "dimension 0": (tensors(tensor("a", [4, 0], 0, 0)), "is empty or does not fit"),
    "dimension 2^63": (tensors(tensor("a", [2**63], 0, 0)), "does not fit the file"),
    "product wraps to 0": (tensors(tensor("a", [2**32, 2**32], 0, 0)), "does not fit the file"),
    "product wraps to 4": (tensors(tensor("a", [2**63 + 2, 2], 0, 0)), "does not fit the file"),
    "unknown tensor type": (tensors(tensor("a", [4], 99, 0)), "tensor 'a' has the unknown type 99"),
    "half a block": (
        tensors(tensor("a", [48], 2, 0)),
        "rows of 48 values are not whole Q4_0 blocks",
    ),
    "offset not aligned": (tensors(tensor("a", [4], 0, 8)), "offset 8 is not a multiple"),
    "offset 2^64-32": (tensors(tensor("a", [4], 0, 2**64 - 32)), "data of tensor 'a' ends at byte"),
    "data beyond the end": (tensors(tensor("a", [65], 0, 0)), "ends at byte 324 of a file of 320"),
    "no data": (tensors(ROW, data=0), "truncated"),
    "overlap": (
        tensors(tensor("a", [16], 0, 0), tensor("b", [4], 0, 32)),
        "'b' overlaps tensor 'a'",
    ),
    "same place": (tensors(ROW, tensor("b", [4], 0, 0)), "overlaps"),
    "cut table": (
        tensors(ROW)[:40],
        "number of tensors is 1, which lies beyond|lies beyond the end",
    ),
    "last byte cut": (WHOLE[:-1], "data of tensor 'b.weight' ends at byte"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_refused_with_a_reason(case: str, tmp_path: Path) -> None:
    raw, reason = BROKEN[case]
    path = tmp_path / "broken.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=reason) as caught:
            GGUFFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message


def test_known_but_unsupported_type_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tensors(tensor("blk.0.w", [256], 9, 0)))
    with pytest.raises(UnsupportedModel, match=r"tensor 'blk.0.w' has the type Q8_1; supported"):
        GGUFFile.open(path)


def test_sparse_file_with_hostile_counts(tmp_path: Path) -> None:
    """A file may be made huge for nothing, so fitting the file is not enough of a limit."""
    path = tmp_path / "sparse.gguf"
    path.write_bytes(keys(("k", raw_array(8, 2**33))))
    with path.open("r+b") as file:
        file.truncate(2**38)
    with pytest.raises(ModelFileError, match="is 8589934592; at most"):
        GGUFFile.open(path)


def test_names_in_messages_are_made_harmless(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(keys(("\x1b[31m\n" + "x" * 500, struct.pack("<I", 77))))
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(path)
    message = str(caught.value).removeprefix(str(path))
    assert message.isprintable() and len(message) < 200


def use_all(path: Path) -> None:
    """Open the file and look at all that it offers."""
    file = GGUFFile.open(path)
    assert all(isinstance(file.metadata[key], object) for key in file.metadata)
    file.get_str("general.architecture")
    assert sum(int(t.data.sum()) for t in file.tensors.values()) >= 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    flips=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=6),
    length=st.integers(0, len(WHOLE)) | st.just(len(WHOLE)),
)
def test_flipped_and_truncated(tmp_path: Path, flips: list[tuple[int, int]], length: int) -> None:
    raw = bytearray(WHOLE)
    for position, value in flips:
        raw[position] = value
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(raw[:length])
    try:
        use_all(path)
    except MLCError as error:
        assert "\n" not in str(error)


def test_every_truncation(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for length in range(len(WHOLE)):
        path.write_bytes(WHOLE[:length])
        with pytest.raises(ModelFileError):
            GGUFFile.open(path)
