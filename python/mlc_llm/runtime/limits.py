"""What a model runner can hold, and what of it the engine core has to plan for. Plain values."""

from __future__ import annotations

from mlc_llm.precision import Precision
from mlc_llm.record import record

DRAFT_PAGES = 4
"""Pages of a windowed sequence beyond its window: drafted tokens that are not trimmed yet."""
SINK_BLOCK = 128
"""Places of a sequence that are seen with one rotation of a query (a section of its keys)."""
SCORE_BYTES = 32 * 2**20
"""Memory for the logits of scored tokens in a step, where that is enough for `LEAST_SCORES`."""
LEAST_SCORES = 16
MOST_SCORES = 128
KEPT_STATES = 2
"""Earlier states that a sequence keeps: as many beginnings that others can take over."""
DRAFT_STATES = 8
"""Draft tokens in a step of a model with states. Each of them costs a state's memory."""
RANK_STEP = 8
"""Memory for adapters is for a multiple of this rank."""
MOST_REPEATED = 256
"""Rows of the largest step that a device repeats with one call. A larger one computes so much that
calls do not count."""
LOGIT_BYTES = 12
"""Bytes of a logit in a step: itself, a copy of the raw value, and the sampler's scratch."""


@record()
class Window:
    """What a token sees of its sequence: the last `size` tokens, itself included, and the first
    `sinks`.

    Rotary embeddings know distances only. Of a token in the window it is the true one, wherever
    the two are. A sink is seen from position p as though from min(p, far): so near that a text may
    go on without end, whatever lengths the model was trained on (StreamingLLM, arXiv 2309.17453,
    which turns tokens by their places in the cache, has the same distances but for `far`). The true
    distance to a sink would do within the trained context, and costs more perplexity the longer it
    is: see docs/performance/accuracy.md. All this depends on positions alone, never on steps or
    batches.
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


@record()
class AdapterLimits:
    """LoRA adapters that a runner can have in memory."""

    slots: int
    """How many; 0: none, and the library is one without."""
    rank: int
    """The largest rank of one, a multiple of `RANK_STEP`."""


NO_ADAPTERS = AdapterLimits(0, 0)


def state_bases(sequences: int, draft_tokens: int = 0) -> int:
    """Bases of the states of so many sequences, each of which may have one of its own: of each
    sequence the last two states and those it keeps; of each draft token of a step; an empty one,
    and one for a state in the middle of a step."""
    return (2 + KEPT_STATES) * sequences + draft_tokens + 2


def state_slots(sequences: int, draft_tokens: int = 0, chunk: int = 1) -> int:
    """Slots for the same. With chunks, a slot that a sequence has left in the middle of a step is
    free only behind it."""
    return state_bases(sequences, draft_tokens) + (sequences if chunk > 1 else 0)


def score_rows(vocab_size: int) -> int:
    """Tokens that a step may score: a row of logits each."""
    return max(LEAST_SCORES, min(MOST_SCORES, SCORE_BYTES // (LOGIT_BYTES * vocab_size)))


@record()
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
    forked at its end and where its state is kept, and rolled back to there only, or to where
    its last step began, or to draft tokens of it."""
    draft_states: int = 0
    """Draft tokens in a step whose states are kept, so that they can be rolled back."""
    hidden_size: int = 0
    """Numbers of a hidden vector."""
    precision: Precision = "exact"
    """How exactly it computes."""
    is_encoder: bool = False
    """A row is a whole text, of which nothing is kept: it gives vectors and no tokens."""
    scores: int = 0
    """Scores that an encoder gives to a pair of texts; 0: it compares none."""
    adapters: AdapterLimits = NO_ADAPTERS
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
