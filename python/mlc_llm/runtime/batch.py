"""What the engine core and the model runner say to each other: ids and lists, no TVM.

The core fills a `Batch`, the runner answers with a `BatchOutput` of the same length. Nobody changes
any of these once it is made. (Not `frozen`, which would make them cost thrice as much.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from mlc_llm.runtime.limits import RunnerLimits
from mlc_llm.runtime.transfer import Transfer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

GREEDY = 1e-5
"""The temperature from which on downwards the most likely token is taken."""
Hidden: TypeAlias = Sequence[float]
"""A hidden vector behind the last norm."""
NO_ADAPTER = -1
"""In place of an adapter's slot."""
KNOWN = -1
"""In place of a row of the step before: all tokens of the row are known."""


class LogitBias(dict[int, float]):
    """What is added to the logits of some tokens, by token id.

    One object for a whole request, and never changed: so a runner prepares it once.
    """

    __slots__ = ("prepared",)

    def __init__(self, values: Mapping[int, float]) -> None:
        super().__init__(values)
        self.prepared: object = None
        """The runner's own; it means nothing to anybody else."""


@dataclass(slots=True)
class Sampling:
    """How one next token is chosen. Filled by the core, read by the runner, which takes the same
    object for the same choice: `token_counts` may only grow while no `Sampling` with it is used
    again.

    Order: bias, repetition penalty, presence and frequency penalty, mask, temperature, top-k,
    top-p, min-p, draw. `uniform` is the one random number of the draw, so the same numbers give
    the same token whatever else is in the batch.
    """

    temperature: float = 1.0
    """At or below GREEDY the most likely token is taken, and no random number counts."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    min_p: float = 0.0
    uniform: float = 0.0
    """In [0, 1)."""
    logit_bias: dict[int, float] = field(default_factory=dict)
    """A `LogitBias` is prepared once, any other one in each step."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    token_counts: dict[int, int] = field(default_factory=dict)
    """Tokens generated so far by this sequence, with counts (read only when a penalty is set)."""
    allowed: bytes | None = None
    """A grammar's mask, a bit a token, the lowest bit first: 4 * ceil(vocab_size / 32) bytes. A
    token whose bit is 0 cannot be chosen. None allows all."""
    top_logprobs: int = -1
    """-1: no log-probability; k >= 0: that of the token and of the k most likely (k <= 20)."""
    wants_hidden: bool = False
    """The hidden vector of which the logits are made is wanted too."""


@dataclass(slots=True)
class Scoring:
    """A question about tokens that are known: how likely was each, behind those before it."""

    first: int
    """The token of the row with this index comes before the first token that is scored."""
    next_ids: Sequence[int]
    """The scored tokens in a row; each but the last is a token of the row as well."""
    top: int
    """The log-probabilities of so many of the most likely tokens are wanted too (0 to 20)."""


class Picture(Protocol):
    """An image, or a part of one, as a tower of images reads it."""

    @property
    def digest(self) -> bytes:
        """A hash of all that decides its vectors."""
        ...

    @property
    def tokens(self) -> int:
        """Vectors that the tower makes of it."""
        ...

    def patches(self) -> npt.NDArray[np.float32]:
        """[patches, numbers of a patch], row of patches by row."""
        ...


@dataclass(frozen=True, slots=True)
class RowImage:
    """Tokens of a row in whose place an image has its vectors."""

    at: int
    """Index in the row of the first one."""
    first: int
    """The vector of the image that it gets; the next ones get those behind it."""
    count: int
    picture: Picture


@dataclass(slots=True)
class BatchRow:
    """New tokens of one sequence. They are appended to its KV pages after those already there."""

    seq_id: int
    token_ids: Sequence[int]
    """At least one."""
    samplings: Sequence[Sampling]
    """One for each of the last `len(samplings)` tokens: how the token behind it is chosen. Empty
    while the prompt goes on in a later step, one for a plain step, more where the row ends with
    drafted tokens. They see the tokens up to theirs alone, so each is what a row that ends there
    would give, bit for bit."""
    prompt_tokens: int = 0
    """How many of the first tokens belong to a prompt: what may be computed less exactly, if the
    runner was made so."""
    scoring: Scoring | None = None
    """All rows together score at most `RunnerLimits.max_scores` tokens."""
    second_at: int = 0
    """Of a pair of texts for an encoder: the token with which the second one begins. Then `hidden`
    holds the pair's scores. 0: it is one text."""
    keep_states: Sequence[int] = ()
    """Of a model with states: behind how many tokens of the sequence the state is kept, each at
    least as many as it had, and fewer than it has behind this row. A sequence keeps the first and
    the last such place."""
    adapter: int = NO_ADAPTER
    """Slot of the LoRA adapter that changes the model for these tokens."""
    images: Sequence[RowImage] = ()
    """All tokens with negative ids are theirs. With `RunnerLimits.whole_images` each image is in
    one row as a whole."""
    chosen_by: int = KNOWN
    """The row of the step before (`OverlappingRunner.submit`) whose chosen token is the one token
    of this row; any id stands for it."""


@dataclass(slots=True)
class Batch:
    """One step of work: sum of tokens <= `RunnerLimits.max_batch_tokens`, one row a sequence."""

    rows: Sequence[BatchRow]


@dataclass(slots=True)
class Sampled:
    """The outcome of one `Sampling`, or the score of a token. Filled by the runner, read by the
    core."""

    token_id: int
    logprob: float | None = None
    """Natural log-softmax of the raw logits at `token_id`; None unless asked for."""
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability), most likely first."""
    hidden: Hidden | None = None
    """The hidden vector behind the last norm, if it was asked for."""
    error: str | None = None
    """Set when this one failed (NaN or infinite logits); `token_id` means nothing then."""


@dataclass(slots=True)
class BatchOutput:
    """One entry a row of the batch: a `Sampled` for each token that it scores, then one for each of
    its samplings."""

    samples: Sequence[Sequence[Sampled]]


class Factors(Protocol):
    """What an adapter adds to a part of a matrix: up @ down, rows in the order of the kernels."""

    @property
    def down(self) -> npt.NDArray[np.float32]:
        """[rank, columns]."""
        ...

    @property
    def up(self) -> npt.NDArray[np.float32]:
        """[rows, rank], times the scale."""
        ...


AdapterParts: TypeAlias = "Mapping[str, Sequence[Factors | None]]"
"""By name of the matrix's parameter: each of its parts; None: the adapter leaves it alone."""


class DraftHeads(Protocol):
    """Heads that draft tokens from a hidden vector of the model, each for its own place."""

    @property
    def count(self) -> int: ...

    def sample(
        self, head: int, hidden: Sequence[Hidden], samplings: Sequence[Sampling]
    ) -> Sequence[Sampled]:
        """Draft a token for each vector, that of token p of a sequence: head 0 for place p + 2."""


class DraftingRunner(Protocol):
    """A runner whose model has an EAGLE head."""

    def rollback_sequence(self, seq_id: int, num_tokens: int) -> None:
        """As of `Runner`."""

    def draft(self, batch: Batch) -> BatchOutput:
        """Let the head draft a token behind each row, which has one token and one sampling.

        The head reads the vector of the token before: the model's, or its own if that token was
        drafted. The row's token is in the pages then, and is to be rolled back before the next
        `run`."""


class Runner(Protocol):
    """The seam between the core and a model. The only other implementations are test fakes."""

    @property
    def limits(self) -> RunnerLimits: ...

    @property
    def free_pages(self) -> int: ...

    def add_sequence(self, seq_id: int) -> None:
        """Register an empty sequence. It owns no page until tokens are run."""

    def fork_sequence(self, parent: int, child: int, length: int) -> None:
        """Make `child` start with the first `length` tokens of `parent` (full pages are shared)."""

    def rollback_sequence(self, seq_id: int, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens; pages that empty become free."""

    def kept_states(self, seq_id: int) -> Sequence[int]:
        """Numbers of tokens behind which an earlier state of the sequence is kept."""

    def export_pages(self, seq_id: int, length: int | None = None) -> Transfer:
        """A copy of the first `length` tokens of a sequence, for another runner; None: of all. A
        sequence with a state or a window can be copied whole only.

        Raises `TransferRefused` if this runner has nothing to copy.
        """

    def import_pages(self, seq_id: int, transfer: Transfer, length: int) -> None:
        """A new sequence with `length` tokens that another runner has computed, as though they had
        been computed here. Raises `TransferRefused`, and `RequestError` if pages lack; nothing has
        changed then."""

    def remove_sequence(self, seq_id: int) -> None:
        """Give the sequence's pages back."""

    def load_adapter(self, slot: int, parts: AdapterParts) -> None:
        """Put a LoRA adapter into a slot, which no row has until then."""

    def run(self, batch: Batch) -> BatchOutput:
        """Compute all rows in one call. Raises `RequestError` if pages lack.

        Whatever it raises, no sequence has changed.
        """

    def reset(self) -> None:
        """Drop every sequence."""

    def check_integrity(self) -> None:
        """AssertionError unless free + used pages = all and every reference count is right."""


class OverlappingRunner(Runner, Protocol):
    """A runner that starts a step while the one before computes. At most two are under way. One
    that nobody collects is forgotten when its rows are rolled back, or their sequences removed."""

    def submit(self, batch: Batch, after: Any = None) -> Any:
        """Start a step, behind the one under way that `after` stands for, if any. Its tokens are in
        the pages at once, as far as anybody can tell. Raises `RequestError` if pages lack; whatever
        it raises, no sequence has changed."""

    def collect(self, started: Any) -> BatchOutput:
        """Wait for the older step under way. If it raises, the tokens of its rows are still in the
        pages: they, and those of a step behind it, are to be rolled back."""
