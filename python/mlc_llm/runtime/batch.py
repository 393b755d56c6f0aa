"""What the engine core and the model runner say to each other: ids and lists, no TVM.

The core fills a `Batch`, the runner answers with a `BatchOutput` of the same length. Nobody changes
any of these once it is made. (Not `frozen`, which would make them cost thrice as much.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from mlc_llm.precision import Precision
from mlc_llm.runtime.transfer import Transfer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DRAFT_PAGES = 4
"""Pages of a windowed sequence beyond its window: drafted tokens that are not trimmed yet."""
SINK_BLOCK = 128
"""Places of a sequence that are seen with one rotation of a query (a section of its keys)."""
GREEDY = 1e-5
"""The temperature from which on downwards the most likely token is taken."""
SCORE_BYTES = 32 * 2**20
"""Memory for the logits of scored tokens in a step, where that is enough for `LEAST_SCORES`."""
LEAST_SCORES = 16
MOST_SCORES = 128
KEPT_STATES = 2
"""Earlier states that a sequence keeps: as many beginnings that others can take over."""
Hidden: TypeAlias = Sequence[float]
"""A hidden vector behind the last norm."""
NO_ADAPTER = -1
"""In place of an adapter's slot."""
KNOWN = -1
"""In place of a row of the step before: all tokens of the row are known."""
RANK_STEP = 8
"""Memory for adapters is for a multiple of this rank."""
MOST_REPEATED = 256
"""Rows of the largest step that a device repeats with one call. A larger one computes so much that
calls do not count."""
LOGIT_BYTES = 12
"""Bytes of a logit in a step: itself, a copy of the raw value, and the sampler's scratch."""


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


@dataclass(frozen=True)
class Window:
    """What a token sees of its sequence: the last `size` tokens, itself included, and the first
    `sinks`.

    Rotary embeddings know distances only. Of a token in the window it is the true one, wherever
    the two are. A sink is seen from position p as though from min(p, far): so near that a text may
    go on without end, whatever lengths the model was trained on (StreamingLLM, arXiv 2309.17453,
    which turns tokens by their places in the cache, has the same distances but for `far`). The true
    distance to a sink would do within the trained context, and costs more perplexity the longer it
    is: see docs/performance.md. All this depends on positions alone, never on steps or batches.
    """

    size: int
    sinks: int = 0

    @property
    def far(self) -> int:
        """The first position from which nothing but sinks is seen of the blocks that hold them: so
        a block of keys is always seen with one query, turned by the position or by this."""
        return self.size - 1 - (-self.sinks // SINK_BLOCK) * SINK_BLOCK

    def unseen(self, length: int, page_size: int) -> range:
        """Pages, counted in the sequence, that no token from place `length` on sees."""
        first = -(-self.sinks // page_size)
        return range(first, max(first, (length - self.size + 1) // page_size))

    def most_pages(self, page_size: int) -> int:
        """Pages with which a sequence of any length gets on, though it may be a token a step."""
        return -(-self.sinks // page_size) - (-self.size // page_size) + 2

    def pool_pages(self, page_size: int, sequences: int, step_tokens: int) -> int:
        """Pages with which so many sequences never lack one, with `step_tokens` tokens a step."""
        held = sequences * (self.most_pages(page_size) + DRAFT_PAGES)
        return held - (-step_tokens // page_size)


@dataclass(frozen=True)
class AdapterLimits:
    """LoRA adapters that a runner can have in memory."""

    slots: int
    """How many; 0: none, and the library is one without."""
    rank: int
    """The largest rank of one, a multiple of `RANK_STEP`."""


NO_ADAPTERS = AdapterLimits(0, 0)


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


def state_slots(sequences: int) -> int:
    """Slots for the states of so many sequences: of each the last two and those it keeps; an empty
    slot, and one for a state in the middle of a step."""
    return (2 + KEPT_STATES) * sequences + 2


def score_rows(vocab_size: int) -> int:
    """Tokens that a step may score: a row of logits each."""
    return max(LEAST_SCORES, min(MOST_SCORES, SCORE_BYTES // (LOGIT_BYTES * vocab_size)))


@dataclass(frozen=True)
class RunnerLimits:
    """What the runner can hold. Filled by the runner, read by the scheduler."""

    num_pages: int
    page_size: int
    max_num_sequence: int
    max_batch_tokens: int
    context_window: int
    vocab_size: int
    """Tokens that may be chosen; a model with more rows leaves the rest out as if it had none."""
    window: Window | None = None
    """What the layers see that need most pages; None: everything. With a window, pages that nothing
    can see any more are given back at the end of a run, but for what computing a sequence's last
    token again needs."""

    narrower: tuple[Window, ...] = ()
    """Windows of layers that see less than those; there are always enough pages for them."""
    has_states: bool = False
    """Some layers keep a state for each sequence, which cannot be cut at a token: a sequence is
    forked at its end and where its state is kept, and rolled back to there only."""
    hidden_size: int = 0
    """Numbers of a hidden vector."""
    precision: Precision = "exact"
    """How exactly it computes."""
    is_encoder: bool = False
    """A row is a whole text, of which nothing is kept: it gives vectors and no tokens."""
    scores: int = 0
    """Scores that an encoder gives to a pair of texts; 0: it compares none."""
    adapters: AdapterLimits = NO_ADAPTERS
    image_tokens: int = 0
    """Vectors that the tower makes of an image; 0: the model takes no images."""
    whole_images: bool = False
    """A token of an image sees all of its image, which is computed in one step."""
    overlaps: bool = False
    """A step can be started while another one computes: it is an `OverlappingRunner`."""

    @property
    def windows(self) -> tuple[Window, ...]:
        """All: a sequence is not forked or rolled back to where one of them would lack pages."""
        return self.narrower if self.window is None else (self.window, *self.narrower)

    @property
    def only_whole(self) -> bool:
        """What a sequence has computed is taken over by another one as a whole or not at all."""
        return self.has_states or bool(self.windows)

    @property
    def keeps_states(self) -> bool:
        """A sequence can be taken over where its state is kept."""
        return self.has_states and not self.windows

    @property
    def max_scores(self) -> int:
        """Tokens that a step may score."""
        return score_rows(self.vocab_size)

    @property
    def capacity(self) -> int:
        """Tokens of one sequence for which the pages are enough."""
        tokens, window = self.num_pages * self.page_size, self.window
        if window is not None and window.most_pages(self.page_size) <= self.num_pages:
            return max(tokens, self.context_window)
        return tokens


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
