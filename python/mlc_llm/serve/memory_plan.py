"""What an engine's memory goes into, by the sizes of its model. Pure arithmetic."""

from __future__ import annotations

from mlc_llm.record import record

RUNTIME_BYTES = 64 * 2**20
"""Machine code, stacks of threads, page tables, requests: 15 MB were measured; the rest is room to
grow. A rank is a process of its own, which has 28 MB alone."""


@record()
class KVSize:
    """Keys and values of a group of layers."""

    layers: int
    elements: int
    """Numbers that a token has in all layers of the group: its keys and values, with their scales
    if they are bytes."""
    element_bytes: int = 4
    window: int | None = None
    """Tokens that a token sees; None: all tokens before it."""

    @property
    def bytes_per_token(self) -> int:
        return self.elements * self.element_bytes


@record()
class StateSize:
    """Bytes of what recurrent layers keep (`runtime/state_table.py`)."""

    slot: int
    base: int
    chunk: int
    """Tokens behind which a sequence has another base."""


@record()
class ModelSize:
    """The numbers of a model that decide how much memory it takes."""

    groups: tuple[KVSize, ...]
    query_width: int
    kv_width: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    context_window: int
    weight_bytes: int
    """As the kernels hold the weights, not as the file does."""
    ropes: int = 1
    """Rotary embeddings; each has a table."""
    sliding_window: int = -1
    """The window in the model's own config; -1: none."""
    attention_sinks: int = 0
    states: StateSize | None = None
    """None: no layer keeps a state."""
    adapter_bytes: int = 0
    """Of a LoRA adapter of rank 1 that changes all matrices."""
    is_encoder: bool = False
    """Its pages hold the keys and values of one layer in one step, and nothing that outlives it."""
    shards: int = 1
    """Ranks that compute it. Weights and pages are those of all ranks together, widths those of the
    largest."""
    token_numbers: int = 0
    """Numbers that a token has in a step; 0: no more than the widths say."""
    tower_bytes: int = 0
    """Of the tower of images and what it computes with; 0: there is none."""
    whole_image: int = 0
    """Tokens of an image, if all of them are computed in one step; 0: they need not be."""
    repeat_bytes: int = 0
    """What steps take that the device repeats with one call; 0: it repeats none."""
    most_tokens: int | None = None
    """Tokens whose pages the kernels can count; None: any number."""
    draft: ModelSize | None = None
    """The draft model; it has as many pages as the model. None: there is no draft model."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token in the groups with the largest window."""
        own = sum(g.bytes_per_token for g in self.groups if g.window == self.largest_window)
        return own + (0 if self.draft is None else self.draft.kv_bytes_per_token)

    @property
    def has_pages(self) -> bool:
        """Some layer has attention."""
        return any(group.layers for group in self.groups)

    @property
    def largest_window(self) -> int | None:
        """None: some layers see all tokens."""
        windows = [group.window for group in self.groups]
        return None if None in windows else max(size for size in windows if size is not None)

    def activations(self, chunk: int, *, has_window: bool) -> int:
        """Bytes of a step of `chunk` tokens: the hidden state, and what lives beside it in the
        larger half of a layer. All are 32-bit floats.

        Attention: input, query, keys and values, rotated query, result. Feed-forward: gate and up,
        twice where they have to be joined first. With a window: queries for sinks, rows of rope.
        `token_numbers`, if these are more: layers of several kinds share little memory.
        """
        query, kv = self.query_width, self.kv_width
        attention = self.hidden_size + (4 if has_window else 3) * query + 2 * kv
        largest = self.hidden_size + max(attention, 4 * self.intermediate_size)
        rope = (2 if has_window else 1) * self.head_dim
        sinks = query if has_window else 0
        return self.shards * 4 * chunk * (rope + max(largest, self.token_numbers + sinks))

    def logits(self, rows: int) -> int:
        """Bytes of the logits of `rows` tokens in one step, with the sampler's scratch and copies
        of raw rows, and of the masks and edits of a step."""
        return 12 * rows * self.vocab_size + 16 * self.vocab_size

    def repeated(self, rows: int) -> int:
        """Bytes of steps that are repeated, of at most `rows` tokens, and of what they compute
        with, which nothing else uses."""
        if not self.repeat_bytes:
            return 0
        filled = 1 << (rows - 1).bit_length()
        return self.repeat_bytes + self.logits(filled) + self.activations(filled, has_window=False)

    def rope(self, longest: int) -> int:
        """Bytes of the sines and cosines for sequences of at most `longest` tokens.

        A table doubles as it grows, so it may be twice as long as it has to be.
        """
        return self.shards * 2 * 4 * self.ropes * self.head_dim * min(longest, self.context_window)

    @property
    def runtime(self) -> int:
        """Bytes of all that grows with nothing, in each rank."""
        return self.shards * RUNTIME_BYTES


@record()
class MemoryPlan:
    """What the memory goes into, in bytes. Python's integers never overflow."""

    free: int
    """Memory that can be had now."""
    utilization: float
    """The share of it that the engine may use."""
    weights: int
    activations: int
    """For the largest step."""
    logits: int
    """For all sequences in one step, with the sampler's scratch and copies for log-probabilities.
    """
    rope: int
    """Sines and cosines up to the longest sequence."""
    kv_per_token: int
    page_size: int
    """In tokens."""
    runtime: int = RUNTIME_BYTES
    windowed: int = 0
    """KV pages of layers that see less than others do: as many as all sequences can need."""
    states: int = 0
    """States of recurrent layers, of all sequences."""
    draft: int = 0
    """Weights and workspace of the draft model."""
    adapters: int = 0
    """Slots of LoRA adapters."""
    tower: int = 0
    """The tower of images."""
    repeated: int = 0
    """Steps that the device repeats."""
    promised: str = ""
    """The memory that `free` leaves out, and whose it is, in words."""

    @property
    def workspace(self) -> int:
        """Everything except the weights and the KV cache."""
        return self.activations + self.logits + self.rope + self.runtime + self.repeated

    @property
    def budget(self) -> int:
        """What the engine may use."""
        return int(self.free * self.utilization)

    @property
    def fit(self) -> int:
        """Tokens, in whole pages, that fit beside everything else; 0 or less if none fit."""
        page = self.page_size * self.kv_per_token
        return (self.budget - self.total(0)) // page * self.page_size

    def total(self, tokens: int) -> int:
        """Everything, with a KV cache for so many tokens."""
        pages = -(-tokens // self.page_size)
        fixed = self.weights + self.draft + self.workspace + self.windowed + self.states
        fixed += self.adapters + self.tower
        return fixed + pages * self.page_size * self.kv_per_token

    def describe(self) -> str:
        """Each part in MB."""
        promised = f" ({self.promised})" * bool(self.promised)
        return (
            f"{_mb(self.free)} free{promised}, of which {self.utilization:.0%} may be used, "
            f"{_mb(self.weights)} weights, {f'{_mb(self.draft)} draft model, ' * bool(self.draft)}"
            f"{f'{_mb(self.adapters)} adapters, ' * bool(self.adapters)}"
            f"{f'{_mb(self.tower)} tower of images, ' * bool(self.tower)}"
            f"{_mb(self.workspace)} workspace, {self.kv_per_token} bytes per token of KV cache: "
            f"{max(self.fit, 0)} tokens fit"
        )


def _mb(count: int) -> str:
    return f"{count / 2**20:.0f} MB"
