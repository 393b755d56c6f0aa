"""Writes the tensors of draft heads. It needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt


def write_tensors(path: Path, tensors: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """float16 and int64. Format: https://github.com/huggingface/safetensors."""
    header, offset = {}, 0
    for name, array in tensors.items():
        end, kind = offset + array.nbytes, "F16" if array.dtype == np.float16 else "I64"
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(array.tobytes())
