"""Shared by the benchmarks: files, statistics, distances of distributions, facts of the machine.

It imports neither torch nor TVM, because the oracle and our engine both use it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlc_llm.support.files import cache_root
from mlc_llm.support.machine import describe
from mlc_llm.support.model_source import default_model_path

HERE = Path(__file__).resolve().parent
FORCED = 64
"""Positions compared for each prompt."""
WINDOW = 1024
"""Tokens of the perplexity text in one fresh sequence."""


def read_json(name: str) -> Any:
    """A JSON file in the folder of the scripts."""
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def model_path(given: str | None) -> Path:
    """The GGUF file to measure: the given one, or the default model (downloaded once)."""
    return Path(given) if given is not None else default_model_path()


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            total.update(piece)
    return total.hexdigest()


def oracle_folder(model: Path, given: str | None = None) -> Path:
    """The folder of the oracle's answers for this file. The file's content gives its name."""
    return Path(given) if given is not None else cache_root() / "oracle" / digest(model)[:16]


# --- statistics -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """The median, the least and the greatest of several measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        digits = 1 if self.median >= 10 else 2
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


# --- distributions: rows of logits; a constant added to a row changes nothing -----------------


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural log-probabilities [..., V] in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def kl_divergence(oracle: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """KL(oracle || ours) in nats for each row of logits [N, V]."""
    p, q = log_softmax(oracle), log_softmax(ours)
    return np.asarray((np.exp(p) * (p - q)).sum(axis=-1))


def token_logprobs(logits: np.ndarray, ids: Sequence[int]) -> np.ndarray:
    """The log-probability [N] that each row of logits [N, V] gives to its id."""
    pairs = zip(logits, ids, strict=True)
    return np.array([log_softmax(row)[token] for row, token in pairs])


def windows(ids: Sequence[int], size: int = WINDOW) -> list[list[int]]:
    """Cut a text into sequences of `size` ids. The first id of each is not predicted."""
    pieces = [list(ids[start : start + size]) for start in range(0, len(ids), size)]
    return [piece for piece in pieces if len(piece) > 1]


# --- the machine ------------------------------------------------------------------------------


def configuration() -> dict[str, str]:
    """Facts of this machine. Every report begins with them."""
    machine = describe()
    return {
        "cpu": f"{machine.cpu}, {machine.cores} cores",
        "features": " ".join(machine.features or ("unknown",)),
        "memory": f"{(machine.memory_total or 0) / 2**30:.0f} GiB",
        "system": machine.system,
        "python": f"{platform.python_version()}, NumPy {np.__version__}",
        "load": f"{os.getloadavg()[0]:.2f} in the minute before",
    }


def print_configuration(title: str, **more: object) -> None:
    """Print the head of a report: the machine, then what the script adds."""
    print(title)
    for name, value in (configuration() | more).items():
        print(f"  {name:14s} {value}")
    print(flush=True)
