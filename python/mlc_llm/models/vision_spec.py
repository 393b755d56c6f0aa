"""What a model of images is, and where its tensors lie in folders and in GGUF files.

SigLIP (Zhai et al. 2023) makes a vector of each patch of an image; Gemma 3 makes of them as many
vectors as it has tokens for an image. Tensors have the names of llama.cpp's `mmproj` files, without
the `v.` before those of the tower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.image_spec import Join, TowerSpec
from mlc_llm.models.network_spec import Activation, DenseSpec
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import Either, FolderNames, Origin, PlusOne
from mlc_llm.models.values import MOST_LAYERS
from mlc_llm.record import record

COLOURS = 3
MOST_PATCHES = 16_384
DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "num_channels": COLOURS, "image_size": 224, "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
}  # fmt: skip
"""Where a `vision_config` does not say it."""
CUT_TYPES = ("idefics3", "smolvlm")
"""Models whose images are cut into tiles."""
CUT_DEFAULTS = {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}
CUT_VISION = ("idefics3", "idefics3_vision", "smolvlm", "smolvlm_vision")
ACTIVATIONS: Mapping[str, Activation] = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}


@record()
class VisionSpec:
    """A tower of SigLIP and what is behind it."""

    side: int
    """Patches in a row of an image, and in a column."""
    patch: int
    """Pixels in a row of a patch, and in a column."""
    hidden: int
    heads: int
    intermediate: int
    layers: int
    norm_eps: float
    activation: Activation
    pooled_side: int
    """Tokens in a row of an image, and in a column."""
    width: int
    """Numbers of a token's vector, as of the language model."""
    join: Join = "mean"

    @property
    def tokens(self) -> int:
        """Of an image."""
        return self.pooled_side**2

    @property
    def patch_numbers(self) -> int:
        """Of one patch, in all colours."""
        return COLOURS * self.patch**2

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors by name."""
        hidden, wide = self.hidden, self.intermediate
        found: dict[str, tuple[int, ...]] = {
            "patch_embd.weight": (hidden, COLOURS, self.patch, self.patch),
            "patch_embd.bias": (hidden,),
            "position_embd.weight": (self.side**2, hidden),
            "post_ln.weight": (hidden,),
            "post_ln.bias": (hidden,),
        }
        if self.join == "mean":
            found["mm.soft_emb_norm.weight"] = (hidden,)
            found["mm.input_projection.weight"] = (hidden, self.width)
        else:
            scale = self.side // self.pooled_side
            found["mm.model.fc.weight"] = (self.width, hidden * scale**2)
        for i in range(self.layers):
            for name in ("ln1", "ln2"):
                found |= _pair(f"blk.{i}.{name}", (hidden,))
            for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
                found |= _pair(f"blk.{i}.{name}", (hidden, hidden))
            found |= _pair(f"blk.{i}.ffn_up", (wide, hidden))
            found |= _pair(f"blk.{i}.ffn_down", (hidden, wide))
        return found

    @property
    def padded_head(self) -> int:
        """The size of a head with zeros behind it, as kernels want it."""
        return _up(self.hidden // self.heads, 16)

    @property
    def padded_intermediate(self) -> int:
        return _up(self.intermediate, 32)

    def model_spec(self) -> ModelSpec:
        """The same as the spec of a model, with zeros where kernels want larger sizes."""
        heads, dim = self.heads, self.hidden // self.heads
        mixer = AttentionSpec(
            heads, heads, self.padded_head, dim**-0.5, rope=None, qkv_bias=True, output_bias=True
        )
        mlp = DenseSpec(self.padded_intermediate, self.activation, bias=True, gated=False)
        numbers = _up(self.patch_numbers, 32)
        tower = TowerSpec(self.side, numbers, self.pooled_side, self.width, self.join,
                          self.norm_eps)  # fmt: skip
        return ModelSpec(
            architecture="tower of images",
            hidden=self.hidden,
            vocab=1,
            context_window=self.side**2,
            norm_eps=self.norm_eps,
            layers=(LayerSpec(mixer, mlp),) * self.layers,
            ropes=(),
            tied_head=True,
            norm="layer",
            learned_positions=self.side**2,
            tower=tower,
        )


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _pair(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def read_vision(config: Mapping[str, object]) -> VisionSpec:
    """Of a `config.json` of Gemma 3 or Idefics 3 with images. Raises UnsupportedModel or
    ModelFileError naming the field at fault."""
    whole = ConfigValues(config, {"mm_tokens_per_image": 256})
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        raise whole.wrong("vision_config", vision, "an object")
    is_cut = config.get("model_type") in CUT_TYPES
    values = ConfigValues(vision, DEFAULTS | CUT_DEFAULTS if is_cut else DEFAULTS)
    values.refuse_unless("model_type", *(CUT_VISION if is_cut else ("siglip_vision_model",)))
    values.refuse_unless("num_channels", COLOURS)
    patch, size = values.count("patch_size"), values.count("image_size")
    side = size // patch
    is_right = side > 0 and side**2 <= MOST_PATCHES
    values.check("image_size", is_right, f"1 to {MOST_PATCHES} patches of patch_size = {patch}")
    pooled = _cut_side(whole, side) if is_cut else _pooled_side(whole, side)
    hidden, heads = values.count("hidden_size"), values.count("num_attention_heads")
    values.check("num_attention_heads", hidden % heads == 0, f"a divisor of {hidden}")
    return VisionSpec(
        side=side,
        patch=patch,
        hidden=hidden,
        heads=heads,
        intermediate=values.count("intermediate_size"),
        layers=values.count("num_hidden_layers", most=MOST_LAYERS),
        norm_eps=values.positive("layer_norm_eps"),
        activation=values.choice("hidden_act", ACTIVATIONS),
        pooled_side=pooled,
        width=whole.part("text_config").count("hidden_size"),
        join="beside" if is_cut else "mean",
    )


def _pooled_side(whole: ConfigValues, side: int) -> int:
    tokens = whole.count("mm_tokens_per_image")
    pooled = math.isqrt(tokens)
    is_square = pooled**2 == tokens and side % pooled == 0
    whole.check("mm_tokens_per_image", is_square, f"a square of a divisor of {side}")
    return pooled


def _cut_side(whole: ConfigValues, side: int) -> int:
    scale = whole.count("scale_factor", 2)
    whole.check("scale_factor", side % scale == 0, f"a divisor of {side}")
    return side // scale


_TOWER = {
    "patch_embd": "embeddings.patch_embedding",
    "position_embd": "embeddings.position_embedding",
    "post_ln": "post_layernorm",
    "blk.{i}.ln1": "encoder.layers.{i}.layer_norm1",
    "blk.{i}.ln2": "encoder.layers.{i}.layer_norm2",
    "blk.{i}.attn_q": "encoder.layers.{i}.self_attn.q_proj",
    "blk.{i}.attn_k": "encoder.layers.{i}.self_attn.k_proj",
    "blk.{i}.attn_v": "encoder.layers.{i}.self_attn.v_proj",
    "blk.{i}.attn_out": "encoder.layers.{i}.self_attn.out_proj",
    "blk.{i}.ffn_up": "encoder.layers.{i}.mlp.fc1",
    "blk.{i}.ffn_down": "encoder.layers.{i}.mlp.fc2",
}
_STARTS = ("", "model.")
_TOWERS = (
    *(f"{start}vision_tower.{inner}" for start in _STARTS for inner in ("vision_model.", "")),
    "model.vision_model.",
)
"""Where versions of Transformers have the tower."""


def _behind(name: str) -> Either:
    return Either(tuple(f"{start}multi_modal_projector.{name}" for start in _STARTS))


def _origins() -> dict[str, Origin]:
    found: dict[str, Origin] = {
        f"{name}.{end}": Either(tuple(f"{tower}{origin}.{end}" for tower in _TOWERS))
        for name, origin in _TOWER.items()
        for end in ("weight", "bias")
        if (name, end) != ("position_embd", "bias")
    }
    norm = _behind("mm_soft_emb_norm.weight")
    found["mm.soft_emb_norm.weight"] = Either(tuple(PlusOne(one) for one in norm.origins))
    found["mm.input_projection.weight"] = _behind("mm_input_projection_weight")
    found["mm.model.fc.weight"] = "model.connector.modality_projection.proj.weight"
    return found


HF_NAMES = FolderNames(
    _origins(),
    ignored=(
        *(f"{tower}head.{{any}}" for tower in _TOWERS),
        "lm_head.{any}",
        *(f"{start}language_model.{{any}}" for start in _STARTS),
        "model.text_model.{any}",
    ),
)
