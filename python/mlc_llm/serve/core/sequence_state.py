"""The parts of a sequence. Each part has one writer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from mlc_llm.runtime.batch import Sampling
    from mlc_llm.serve.data import FinishReason
    from mlc_llm.tokenizers import StopStrHandler


class Status(IntEnum):
    """The life of a sequence, in order. STOPPED and all behind it are ends."""

    WAITING = 0
    """It has no slot: it is new, or it was preempted."""
    RUNNING = 1
    """It has a slot in the runner."""
    STOPPED = 2
    LENGTH = 3
    ABORTED = 4
    FAILED = 5

    is_end: bool

    def __init__(self, value: int) -> None:
        self.is_end = value >= 2  # read several times a token: no property


FINISH_REASON: dict[Status, FinishReason] = {
    Status.STOPPED: "stop",
    Status.LENGTH: "length",
    Status.ABORTED: "abort",
    Status.FAILED: "error",
}


@dataclass(slots=True)
class Progress:
    """Where a sequence stands in the queues and in the pages. The scheduler writes it."""

    status: Status = Status.WAITING
    seq_id: int | None = None
    """Its slot in the runner, while it runs."""
    computed: int = 0
    """Tokens in the runner's pages."""
    prefill_length: int = 0
    """Tokens that were known when it got its slot."""
    reached: int = 0
    """The greatest value of `computed` so far. After a preemption, the tokens up to here are
    computed again."""

    parted: int = 0
    """Where it parts from a sequence of the prefix cache of which nothing could be taken over from
    there, for want of a state; 0: nowhere."""

    def begin(self, seq_id: int, length: int, known: int, parted: int = 0) -> None:
        """It runs from now on. Its slot holds the first `length` of its `known` tokens already."""
        self.parted = parted
        self.status, self.seq_id, self.computed = Status.RUNNING, seq_id, length
        self.prefill_length = known
        self.reached = max(self.reached, length)

    def leave_slot(self) -> None:
        """The slot and its pages belong to somebody else now."""
        self.seq_id, self.computed = None, 0


@dataclass(slots=True)
class SamplingState:
    """What decides the next token besides the model. `Sequence.commit` and `sampling_of` write it.

    The random numbers depend on the seed only: number i is for the i-th token that is drawn.
    """

    seed: int
    token_counts: dict[int, int] = field(default_factory=dict)
    """How often each token was generated; counted only if a penalty reads it."""
    lasting: Sampling | None = None
    """The sampling of every token but for its random number, where nothing else changes."""
    forced: int = 0
    """Tokens for which no number was drawn."""
    _numbers: list[float] = field(default_factory=list)
    """From number `_first` on."""
    _first: int = 0
    _rng: Random | None = None

    def uniforms(self, start: int, count: int) -> list[float]:
        """`count` random numbers, from that of the next token on, which is number `start`. Those
        before it are never asked for again.

        They stay the same. So a step that is planned twice, after a preemption or a fault, chooses
        the same tokens.
        """
        assert start >= self._first, "a number that is gone"
        del self._numbers[: start - self._first]
        self._first = start
        if len(self._numbers) < count:
            draw = self._generator().random
            self._numbers += [draw() for _ in range(count - len(self._numbers))]
        return self._numbers[:count]

    def _generator(self) -> Random:
        if self._rng is None:
            from random import Random

            self._rng = Random(self.seed)
        return self._rng


@dataclass(slots=True)
class OutputState:
    """What the user has not seen yet. The postprocessor writes it."""

    stops: StopStrHandler | None = None
    """Holds back tokens that may begin a stop string."""
    held_logprobs: deque[str] = field(default_factory=deque)
    """Log-probabilities of the tokens that `stops` holds back."""
    delta_ids: list[int] = field(default_factory=list)
    """Tokens to show in the next output."""
    delta_logprobs: list[str] = field(default_factory=list)
    """Log-probabilities of these tokens."""
    cut_bytes: int = 0
    """Bytes of the last shown token that belong to a stop string."""
    is_reported: bool = False
    """The finish reason was given out."""
    token_at: float | None = None
    """When the last step ended that gave it tokens; the core writes it."""

    @property
    def stop_str(self) -> str | None:
        """The stop string that ended the sequence."""
        return None if self.stops is None else self.stops.found
