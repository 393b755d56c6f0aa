"""Measures what each precision costs on a model, once, and decides `precision="auto"`.

The text is a part of the package. Each precision computes the same prompts of it and what follows;
the exact logits are what the others are compared with.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mlc_llm.backends.registry import choose_backend
from mlc_llm.compiler.jit import Prepared, packed_weights, prepare
from mlc_llm.errors import CacheError, InvalidField
from mlc_llm.precision import PRECISIONS, Precision
from mlc_llm.runtime.batch import Batch, BatchRow, Sampling
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.opening.bundle import ModelBundle
from mlc_llm.serve.opening.runner import create_runner
from mlc_llm.serve.precision_costs import (
    ANSWER,
    BATCH,
    COSTS_FILE,
    PROMPT,
    PrecisionCost,
    fastest,
    read_costs,
    written,
)
from mlc_llm.support.files import write_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np

TEXT = Path(__file__).parent / "sample.txt"
PIECE = PROMPT + ANSWER
MOST_PIECES = 6
"""Enough for two digits of the divergence."""
STEPS, PROMPTS = 16, 3
"""Steps of answers, and prompts, of which the quickest counts."""
GREEDY = Sampling(temperature=0.0)

Logits: TypeAlias = "list[npt.NDArray[np.floating[Any]]]"
_log = logging.getLogger(__name__)


def with_precision(config: EngineConfig, bundle: ModelBundle) -> EngineConfig:
    """The config with a precision that is decided. Measures all of them for `auto`, if nobody has.
    `fast` becomes `fast-prompts` where exact answers are the faster ones.

    Raises what `costs_of` raises, and InvalidField for `auto` with a library of the user's own.
    """
    if config.precision == "fast" and config.model_lib is None:
        return replace(config, precision=_fast(bundle, config.kernels))
    if config.precision != "auto":
        return replace(config, precision=config.precision or "exact")
    if config.model_lib is not None:
        words = "model_lib is for one precision; name it"
        raise InvalidField("precision", config.precision, words)
    costs = costs_of(bundle, config.kernels)
    chosen = fastest(costs) if costs else None
    return replace(config, precision="exact" if chosen is None else chosen.precision)


def costs_of(bundle: ModelBundle, kernels: str | None = None) -> list[PrecisionCost]:
    """What each precision costs on a model that these kernels can compute, `exact` first. Takes
    seconds, but only for the first time: the costs are kept beside the packed weights. Empty for a
    model whose context is too short. Raises what `prepare` and `create_runner` raise."""
    pieces = _pieces(bundle)
    if not pieces:
        return []
    exact = _prepared(bundle, kernels)
    known = read_costs(exact.weights, exact.library.name)
    if known:
        return known
    _log.info("measuring the precisions of %s", bundle.name)
    found, reference = [], None
    for precision in PRECISIONS:
        if precision == "fast" and not _has_fast_answers(bundle, kernels):
            continue
        try:
            runner = create_runner(bundle, _small(precision, kernels))
        except InvalidField:  # kernels or weights without this way
            continue
        assert isinstance(runner, ModelRunner), "an encoder has no pieces"
        logits = _logits(runner, pieces)
        reference = logits if reference is None else reference
        found.append(_cost(precision, runner, pieces[0], divergence(reference, logits)))
    found = _measured_again(found, bundle, kernels, pieces[0])
    with suppress(CacheError):  # a cache that is read-only: it is measured again next time
        text = written(exact.library.name, found)
        write_file(exact.weights / COSTS_FILE, text.encode())
    return found


def _measured_again(
    costs: Sequence[PrecisionCost],
    bundle: ModelBundle,
    kernels: str | None,
    piece: Sequence[int],
) -> list[PrecisionCost]:
    """The same with the better speeds of two times, the second time in the other order: memory may
    be slower for a while, which would say something of one precision alone."""
    again: dict[Precision, PrecisionCost] = {}
    for one in reversed(costs) if len(costs) > 1 else ():
        runner = create_runner(bundle, _small(one.precision, kernels))
        assert isinstance(runner, ModelRunner), "it was one before"
        again[one.precision] = _cost(one.precision, runner, piece, one.divergence)
    return [one.faster_of(again.get(one.precision, one)) for one in costs]


def _fast(bundle: ModelBundle, kernels: str | None) -> Precision:
    """The precision that `fast` means for a model."""
    if _has_fast_answers(bundle, kernels):
        return "fast"
    _log.warning(
        "precision 'fast' is 'fast-prompts' here: with these kernels exact answers are faster than "
        "less exact ones"
    )
    return "fast-prompts"


def _has_fast_answers(bundle: ModelBundle, kernels: str | None) -> bool:
    """An encoder has no answers, and a model with recurrent layers cannot compute prompts alone
    less exactly: so `fast` is what it says for both."""
    if bundle.files is None or bundle.is_encoder or bundle.files.plan().spec.recurrent_layers:
        return True
    return choose_backend(kernels).has_fast_answers


def known_costs(bundle: ModelBundle) -> list[PrecisionCost]:
    """What was measured before; empty if nothing was. It may be of an older version's code."""
    assert bundle.files is not None
    folder = packed_weights(bundle.files)
    return [] if folder is None else read_costs(folder)


def divergence(exact: Logits, other: Logits) -> float:
    """Mean KL(exact || other) of logits, in nats a token."""
    each = [_divergences(*pair) for pair in zip(exact, other, strict=True)]
    return max(float(np.mean(each)), 0.0)


def _divergences(
    exact: npt.NDArray[np.floating[Any]], other: npt.NDArray[np.floating[Any]]
) -> npt.NDArray[np.floating[Any]]:
    p, q = _log_softmax(exact), _log_softmax(other)
    return np.asarray((np.exp(p) * (p - q)).sum(axis=-1))


def _log_softmax(logits: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _pieces(bundle: ModelBundle) -> list[Sequence[int]]:
    """Prompts, each with what follows it; none for an encoder, which has no logits."""
    if bundle.is_encoder:
        return []
    ids = bundle.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    if bundle.context_window <= PIECE + STEPS:
        return []
    starts = range(0, len(ids) - PIECE + 1, PIECE)
    return [ids[start : start + PIECE] for start in starts[:MOST_PIECES]]


def _prepared(bundle: ModelBundle, kernels: str | None) -> Prepared:
    assert bundle.files is not None
    return prepare(bundle.files, kernels, vocab_size=bundle.tokenizer.vocab_size)


def _small(precision: Precision, kernels: str | None) -> EngineConfig:
    """For a runner that measures."""
    return EngineConfig(
        precision=precision,
        kernels=kernels,
        max_num_sequence=BATCH + 1,
        max_single_sequence_length=2 * PIECE,
        max_total_sequence_length=2 * PIECE * (BATCH + 1),
        prefill_chunk_size=PROMPT,
    )


def _logits(runner: ModelRunner, pieces: Sequence[Sequence[int]]) -> Logits:
    """Of the answers [ANSWER, V]."""
    found = []
    for piece in pieces:
        *_, last = runner.logits_by_step(piece, ANSWER, PROMPT)
        found.append(np.asarray(last, dtype=np.float32))
    return found


def _cost(
    precision: Precision, runner: ModelRunner, piece: Sequence[int], distance: float
) -> PrecisionCost:
    prompt = min(_prompt_seconds(runner, piece[:PROMPT]) for _ in range(PROMPTS))
    alone = _seconds_a_step(runner, 1)
    for seq_id in range(1, BATCH):
        runner.fork_sequence(0, seq_id, PROMPT)
    together = _seconds_a_step(runner, BATCH)
    runner.reset()
    return PrecisionCost(precision, PROMPT / prompt, 1 / alone, BATCH / together, distance)


def _prompt_seconds(runner: ModelRunner, prompt: Sequence[int]) -> float:
    """Sequence 0 holds the prompt then."""
    runner.reset()
    runner.add_sequence(0)
    return _seconds(runner, BatchRow(0, prompt, [GREEDY], len(prompt)))


def _seconds_a_step(runner: ModelRunner, sequences: int) -> float:
    """The shortest of steps in which sequences decode: other programs make steps longer only."""
    rows = [BatchRow(seq_id, [1], [GREEDY]) for seq_id in range(sequences)]
    return min(_seconds(runner, *rows) for _ in range(STEPS))


def _seconds(runner: ModelRunner, *rows: BatchRow) -> float:
    start = time.perf_counter()
    runner.run(Batch(rows))
    return time.perf_counter() - start
