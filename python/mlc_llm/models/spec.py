"""What a model is, as plain numbers: the same for every file format and every device.

A `ModelSpec` says what each layer computes. A backend says how (`backends/base.py`), and a weight
plan says which tensors of a file hold the weights (`weight_plan.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Literal, TypeAlias

from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.attention_spec import AttentionSpec, RopeSpec
from mlc_llm.models.encoder_spec import EncoderSpec
from mlc_llm.models.heads_spec import MedusaSpec
from mlc_llm.models.image_spec import Sight, TowerSpec
from mlc_llm.models.network_spec import DenseSpec, FeedForward
from mlc_llm.models.recurrent import RECURRENT, Recurrent
from mlc_llm.record import record

Norm = Literal["rms", "layer"]
"""Root mean square (Zhang and Sennrich 2019), or mean and variance with a bias (Ba et al. 2016)."""
Mixer: TypeAlias = AttentionSpec | Recurrent
"""How a layer lets tokens see each other: attention keeps pages, any other one keeps a state."""
Keeper: TypeAlias = Recurrent | FeedForward
"""A part of a layer that may keep a state."""


@record()
class LayerSpec:
    """x += mixer(norm(x)), then x += feed_forward(norm(x)).

    The norms before are there if `pre_norms`. With `post_norms` there is another norm before each
    sum, with `sum_norms` one behind it: x = norm(x + mixer(x)). What is added is multiplied by
    `residual_scale`. A parallel layer computes both parts from the same x: x += mixer(norm(x)) +
    feed_forward(norm(x)).
    """

    mixer: Mixer
    feed_forward: FeedForward
    beside: Recurrent | None = None
    """Another mixer, beside one of attention: it reads the same norm, and both are added."""
    pre_norms: bool = True
    mixer_norm: bool = True
    """With `pre_norms`, the mixer has one; else it reads x itself."""
    post_norms: bool = False
    sum_norms: bool = False
    residual_scale: float = 1.0
    parallel: bool = False
    one_norm: bool = False
    """Both parts of a parallel layer read one and the same norm."""
    output_scale: bool = False
    """What a layer gives is multiplied by a learned number."""
    token_input: int = 0
    """So many numbers z of the token are read beside x (Gemma 3n, 2025): from a table of tokens and
    a matrix, z = (table * sqrt(token_input) + norm(matrix * embedding / sqrt(hidden))) / sqrt(2).
    Behind both halves, x += norm(out(gelu(gate(x)) * z)). 0: there are none."""

    @property
    def has_network(self) -> bool:
        return self.feed_forward.width > 0

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """All that let tokens see each other."""
        return (self.mixer,) if self.beside is None else (self.mixer, self.beside)

    @property
    def recurrent(self) -> Recurrent | None:
        """The mixer that keeps a state, if there is one."""
        one = self.mixers[-1]
        return one if isinstance(one, RECURRENT) else None

    @property
    def keepers(self) -> tuple[Keeper, ...]:
        """The parts that keep a state: a mixer, then the network."""
        mixer = () if self.recurrent is None else (self.recurrent,)
        return tuple(one for one in (*mixer, self.feed_forward) if one.state_shapes)


@record()
class EagleSpec:
    """A head that drafts tokens one after the other (EAGLE, Li et al. 2024; EAGLE-3, 2025): a
    decoder layer that reads the embedding e of a token and the vector v of the token before.

    EAGLE-1, without `taps`: v is the model's hidden vector behind its last norm. The layer reads
    fc [e; v], without a norm. What it gives is taken as v of the next token, and the model's head
    makes logits of it. EAGLE-3: v is fc of the model's vectors behind some layers, side by side.
    Queries, keys and values read [norm(e); norm(v)], and the layer adds to v. It has a norm and a
    head of its own.

    Keys and values of the layer lie in pages, and so does v of each token.
    """

    attention: AttentionSpec
    network: DenseSpec
    norm_eps: float
    fc_bias: bool = False
    taps: tuple[int, ...] = ()
    """Behind so many layers the vectors are read; 0 is the embedding."""
    adds_to_norm: bool = False
    """The layer adds to norm(v), not to v."""
    vocab: int = 0
    """Rows of its own head; 0: it has none."""
    chooses: bool = False
    """Its head has rows for some tokens only: a table says which row a token has, or -1."""


@record()
class KVGroup:
    """Layers whose heads have one shape and see through one window: they share a page table.

    A model without attention has one group of no layers: its page table counts tokens."""

    layers: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None


@record()
class AdaptedMatrix:
    """A matrix to which LoRA adapters may add."""

    name: str
    """Of its parameter."""
    columns: int
    widths: tuple[int, ...]
    """Rows of each of its parts."""


@record()
class ModelSpec:
    """A decoder: embedding, layers, a last norm and a head over the vocabulary. Or an encoder,
    draft heads, or a tower of images."""

    architecture: str
    hidden: int
    vocab: int
    """Rows of the embedding, and of the head."""
    context_window: int
    """Tokens it was trained for."""
    norm_eps: float
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    tied_head: bool
    """The head is the embedding table."""
    embedding_scale: float = 1.0
    norm: Norm = "rms"
    """Of the layers and of the last one."""
    norm_bias: bool = True
    """Layer norms have biases."""
    embedding_norm: bool = False
    """The embedding has a norm before the first layer. (Encoders say it in `encoder`.)"""
    learned_positions: int = 0
    """Rows of a table, one a position, which are added to the embedding; 0: there is no table."""
    logit_scale: float = 1.0
    """Logits are multiplied by this, before the cap."""
    logit_cap: float | None = None
    """A logit z becomes cap * tanh(z / cap)."""
    encoder: EncoderSpec | None = None
    """What makes it an encoder; None: it is a decoder."""
    medusa: MedusaSpec | None = None
    """What makes it Medusa heads for another model: it has no layers and no embedding."""
    eagle: EagleSpec | None = None
    """A head behind its layers that drafts tokens; None: there is none."""
    tower: TowerSpec | None = None
    """What makes it a tower of images: its tokens are patches, and see each other."""
    sight: Sight | None = None
    """The decoder takes vectors of images in place of tokens; None: it does not."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Tensor type in the file, such as "Q4_0", of every matrix by parameter name."""
    active_vocab: int | None = None
    """How many rows, from the first on, are tokens of the tokenizer; None: all."""
    adapted: tuple[AdaptedMatrix, ...] = ()
    """Those to which LoRA adapters of a step may add; none in an engine without adapters."""
    shards: int = 1
    """Ranks that compute the model together. With more than 1 this is the share of one of them: the
    layers have its heads and its rows of feed-forward networks, and the sums of all ranks are added
    where they join the residual stream."""

    @property
    def tokens(self) -> int:
        """Rows of the output that may be chosen."""
        return self.vocab if self.active_vocab is None else min(self.active_vocab, self.vocab)

    @property
    def attention_layers(self) -> dict[int, AttentionSpec]:
        """The layers of attention, by number, in order; that of a draft head is the last."""
        layers = enumerate(self.layers)
        found = {i: one.mixer for i, one in layers if isinstance(one.mixer, AttentionSpec)}
        return found if self.eagle is None else {**found, len(self.layers): self.eagle.attention}

    @property
    def paged_layers(self) -> dict[int, AttentionSpec]:
        """The layers that keep pages, by number, in order. Behind them stand the pages with the
        vectors that a draft head reads (`vector_pages`)."""
        found = {i: one for i, one in self.attention_layers.items() if one.shares is None}
        return found if self.eagle is None else found | self.vector_pages

    @property
    def vector_pages(self) -> dict[int, AttentionSpec]:
        """Pages of vectors, as if they were keys and values of so many layers more like that of the
        draft head: each has room for 2 * kv_width numbers of a token."""
        if self.eagle is None:
            return {}
        one, first = self.eagle.attention, len(self.layers) + 1
        return dict.fromkeys(range(first, first - (-self.hidden // (2 * one.kv_width))), one)

    @property
    def recurrent_layers(self) -> dict[int, Recurrent]:
        """The layers that keep a state, by number, in order."""
        mixers = ((i, one.recurrent) for i, one in enumerate(self.layers))
        return {i: one for i, one in mixers if one is not None}

    @property
    def keepers(self) -> tuple[tuple[int, Keeper], ...]:
        """The number of a layer, and a part of it that keeps a state, in order."""
        return tuple((i, one) for i, layer in enumerate(self.layers) for one in layer.keepers)

    @property
    def token_inputs(self) -> int:
        """Of all layers together."""
        return sum(layer.token_input for layer in self.layers)

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        """In the order of their first layers."""
        groups: dict[tuple[int, int, int, int | None], list[int]] = {}
        for i, one in self.paged_layers.items():
            groups.setdefault((one.heads, one.kv_heads, one.head_dim, one.window), []).append(i)
        if not groups:
            return (KVGroup((), 0, 0, 0, None),)
        return tuple(KVGroup(tuple(layers), *key) for key, layers in groups.items())

    @property
    def seeing_groups(self) -> tuple[int, ...]:
        """Indices into `kv_groups` of those whose window begins earlier for tokens of an image."""
        groups = enumerate(self.kv_groups)
        return tuple(g for g, one in groups if one.window and self.sight == "whole")

    @property
    def reaches(self) -> tuple[int, ...]:
        """Of the layers of an encoder, each once, in the order of their first layers."""
        found = (one.reach for one in self.attention_layers.values())
        return tuple(dict.fromkeys(one for one in found if one is not None))

    @property
    def has_sink_queries(self) -> bool:
        return any(one.sink_query for one in self.attention_layers.values())

    def with_feed_forward(self, one: FeedForward) -> ModelSpec:
        """With this feed-forward network in every layer."""
        layers = tuple(replace(layer, feed_forward=one) for layer in self.layers)
        return replace(self, layers=layers)

    def with_attention(self, change: Callable[[int, AttentionSpec], AttentionSpec]) -> ModelSpec:
        """change: gives the new attention of a layer, from its number and its attention."""
        layers = list(self.layers)
        for i, one in self.attention_layers.items():
            layers[i] = replace(layers[i], mixer=change(i, one))
        return replace(self, layers=tuple(layers))

    def with_sink_queries(self) -> ModelSpec:
        """For an engine with a sliding window, which the layers that see everything get. Raises
        UnsupportedModel."""
        if self.learned_positions:
            words = "the model has learned positions: the engine can have no window"
            raise UnsupportedModel(words)
        for i, one in self.attention_layers.items():
            if one.query_scaling is not None:
                words = f"layer {i} scales queries by position: the engine can have no window"
                raise UnsupportedModel(words)
        return self.with_attention(lambda _, one: replace(one, sink_query=one.window is None))

    def group_of_layer(self) -> dict[int, int]:
        """Index into `kv_groups` of every layer of attention."""
        found = {i: g for g, group in enumerate(self.kv_groups) for i in group.layers}
        for i, one in self.attention_layers.items():
            if one.shares is not None:
                found[i] = found[one.shares]
        return found
