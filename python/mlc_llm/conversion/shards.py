"""Writes parameters as shards, the format of MLC LLM's folders.

`tensor-cache.json` is {metadata: {ParamSize, ParamBytes, BitsPerParam}, records: [{dataPath,
format, nbytes, md5sum, records: [{name, shape, dtype, format, nbytes, byteOffset}]}]}. The inner
records are the parameters in `params_shard_N.bin`, one behind the other. A shard has at most
32 MiB, or one parameter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from mlc_llm.protocol.json_value import JsonValue

INDEX = "tensor-cache.json"
SHARD_BYTES = 32 << 20
Array = npt.NDArray[np.generic]


class ShardWriter:
    """Writes into a folder. Parameters come one after the other, each in pieces."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shards: list[JsonValue] = []
        self._records: list[JsonValue] = []
        self._file: BinaryIO | None = None
        self._offset = self._total = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    def add(
        self, name: str, shape: Sequence[int], dtype: str, nbytes: int, pieces: Iterable[Array]
    ) -> None:
        """Write a parameter. nbytes: of all pieces together. Raises OSError."""
        if self._file is None or self._offset + nbytes > SHARD_BYTES:
            self._end_shard()
            self._file = (self._folder / self._path()).open("wb")
        written = 0
        for piece in pieces:
            data = np.ascontiguousarray(piece).data.cast("B")
            self._file.write(data)
            self._md5.update(data)
            written += len(data)
        assert written == nbytes, f"{name}: {written} bytes, not {nbytes}"
        self._records.append(
            {
                "name": name,
                "shape": list(shape),
                "dtype": dtype,
                "format": "raw",
                "nbytes": nbytes,
                "byteOffset": self._offset,
            }
        )
        self._offset += nbytes

    def finish(self, values: int) -> None:
        """Write the index. values: numbers of the model before it was quantised."""
        self._end_shard()
        metadata: JsonValue = {
            "ParamSize": sum(len(_records(shard)) for shard in self._shards),
            "ParamBytes": float(self._total),
            "BitsPerParam": 8 * self._total / values,
        }
        text = json.dumps({"metadata": metadata, "records": self._shards}, indent=2)
        (self._folder / INDEX).write_text(text, encoding="utf-8")

    def close(self) -> None:
        """Close the file, whatever has happened."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _path(self) -> str:
        return f"params_shard_{len(self._shards)}.bin"

    def _end_shard(self) -> None:
        if self._file is None:
            return
        self.close()
        self._shards.append(
            {
                "dataPath": self._path(),
                "format": "raw-shard",
                "nbytes": self._offset,
                "records": self._records,
                "md5sum": self._md5.hexdigest(),
            }
        )
        self._total += self._offset
        self._records, self._offset = [], 0
        self._md5 = hashlib.md5(usedforsecurity=False)


def _records(shard: JsonValue) -> list[JsonValue]:
    assert isinstance(shard, dict)
    records = shard["records"]
    assert isinstance(records, list)
    return records
