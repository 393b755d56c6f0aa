"""Distances between the oracle's logits and others, and the file that `oracle.py` wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict

import numpy as np
from common import FORCED, kl_divergence, token_logprobs, windows


class Logits(Protocol):
    """The part of a model runner that gives raw logits."""

    def logits(self, token_ids: Sequence[int], *, chunk: int | None = None) -> np.ndarray:
        """Raw float32 logits [len, V] of one fresh sequence."""


class Case(TypedDict):
    """A sequence whose last 64 ids are forced."""

    name: str
    kind: str
    ids: list[int]
    start: int
    """Index of the first forced id."""


@dataclass(frozen=True)
class Agreement:
    """Two sets of logits for the same positions. Each array has one entry a position."""

    same_top: np.ndarray
    kl: np.ndarray
    delta: np.ndarray

    @classmethod
    def of(cls, oracle: np.ndarray, ours: np.ndarray) -> Agreement:
        """Both [N, V]. `delta` is of raw logits: a constant added to a row counts."""
        return cls(
            oracle.argmax(axis=-1) == ours.argmax(axis=-1),
            kl_divergence(oracle, ours),
            np.abs(oracle.astype(np.float64) - ours).max(axis=-1),
        )

    @classmethod
    def joined(cls, parts: Sequence[Agreement]) -> Agreement:
        fields = ("same_top", "kl", "delta")
        return cls(*(np.concatenate([getattr(part, f) for part in parts]) for f in fields))

    def __str__(self) -> str:
        return (
            f"top-1 {100 * self.same_top.mean():6.2f} %   KL mean {self.kl.mean():.2e}"
            f" max {self.kl.max():.2e}   max |dlogit| {self.delta.max():.2e}"
        )


@dataclass(frozen=True)
class OracleAnswers:
    """The answers that `oracle.py` wrote for one file."""

    cases: list[Case]
    logits: np.ndarray
    """[cases * 64, V], mapped from the file."""
    text_ids: list[int]
    text_logprobs: np.ndarray

    @classmethod
    def read(cls, folder: Path) -> OracleAnswers:
        """Raises SystemExit, which says what to run, if there are none."""
        try:
            answers = json.loads((folder / "oracle.json").read_text(encoding="utf-8"))
            logits = np.load(folder / "logits.npy", mmap_mode="r")
        except FileNotFoundError as error:
            raise SystemExit(
                f"{error.filename} is missing: run benchmarks/oracle.py first"
            ) from None
        text = answers["perplexity"]
        return cls(answers["cases"], logits, text["ids"], np.array(text["logprobs"]))

    def forced(self, index: int) -> np.ndarray:
        """Logits [64, V] of one case."""
        return np.asarray(self.logits[index * FORCED : (index + 1) * FORCED])


def compare_forced(runner: Logits, oracle: OracleAnswers, chunk: int | None) -> list[Agreement]:
    """One agreement a case."""
    result = []
    for index, case in enumerate(oracle.cases):
        ours = runner.logits(case["ids"][:-1], chunk=chunk)[case["start"] - 1 :]
        result.append(Agreement.of(oracle.forced(index), ours))
    return result


def perplexity_ratio(runner: Logits, oracle: OracleAnswers, chunk: int | None) -> float:
    """Our perplexity on the text divided by the oracle's."""
    pieces = windows(oracle.text_ids)
    ours = [token_logprobs(runner.logits(p[:-1], chunk=chunk), p[1:]) for p in pieces]
    return float(np.exp(oracle.text_logprobs.mean() - np.concatenate(ours).mean()))


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids are equal before the first that differs."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
