"""Tensors of Hugging Face folders under GGUF's names: what they hold, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.gguf_tensors import GGUFTensor
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.folder_tensors import Shape, named_tensors
from mlc_llm.model_files.huggingface import plan_folder
from mlc_llm.models.tensor_names import (
    Alternate,
    Either,
    FolderNames,
    Microscaled,
    Origin,
    PlusOne,
    Rows,
    Squeezed,
    Transposed,
    fused,
    fused_heads,
)
from mlc_llm.quantization.ggml_blocks import dequantize

Floats = npt.NDArray[np.float32]
RNG = np.random.default_rng(0)
EXPERTS, ROWS, COLUMNS = 3, 4, 6
NORM_PARTS = ("weight", "bias")


def tensor(name: str, values: npt.NDArray[np.generic], kind: str = "F32") -> GGUFTensor:
    data = np.ascontiguousarray(values).tobytes()
    return GGUFTensor(name, values.shape, kind, memoryview(data), Path("model.safetensors"))


def folder(**shapes: Shape) -> dict[str, GGUFTensor]:
    """Random tensors; `__` in a name stands for a dot."""
    names = {name.replace("__", "."): shape for name, shape in shapes.items()}
    return {
        name: tensor(name, RNG.standard_normal(shape, np.float32)) for name, shape in names.items()
    }


def floats(one: Tensor) -> Floats:
    return one.data.view(np.float32).reshape(one.shape)


def found(origin: Origin, shape: Shape, tensors: dict[str, GGUFTensor]) -> Floats:
    names = FolderNames({"blk.{i}.x": origin})
    return floats(named_tensors({"blk.7.x": shape}, names, tensors)["blk.7.x"])


def test_a_plain_name_is_the_file_s_own_bytes() -> None:
    tensors = folder(l__7=(ROWS, COLUMNS))
    views = named_tensors(
        {"blk.7.x": (ROWS, COLUMNS)}, FolderNames({"blk.{i}.x": "l.{i}"}), tensors
    )
    assert views["blk.7.x"] is tensors["l.7"]


@pytest.mark.parametrize(("kind", "dtype"), [("F32", np.float32), ("F16", np.float16)])
def test_norms_plus_one(kind: str, dtype: type[np.generic]) -> None:
    values = RNG.standard_normal(COLUMNS).astype(dtype)
    tensors = {"n.7": tensor("n.7", values, kind)}
    assert (found(PlusOne("n.{i}"), (COLUMNS,), tensors) == values.astype(np.float32) + 1).all()


def test_changes_of_shape() -> None:
    tensors = folder(m__7=(COLUMNS, ROWS), s__7=(ROWS, 1, COLUMNS))
    turned = found(Transposed("m.{i}"), (ROWS, COLUMNS), {"m.7": tensors["m.7"]})
    assert (turned == floats(tensors["m.7"]).T).all()
    flat = found(Squeezed("s.{i}"), (ROWS, COLUMNS), {"s.7": tensors["s.7"]})
    assert (flat == floats(tensors["s.7"])[:, 0]).all()


def test_rows_of_a_fused_matrix_and_of_its_bias() -> None:
    tensors = folder(f__2=(9, COLUMNS), b__2=(9,))
    shapes: dict[str, Shape] = {"q": (5, COLUMNS), "k": (3, COLUMNS), "v": (1, COLUMNS)}
    parts = [f"blk.{{i}}.{name}" for name in shapes]
    names = FolderNames(fused("f.{i}", *parts)) | fused("b.{i}", *(f"{one}.b" for one in parts))
    wanted = {f"blk.2.{name}": shape for name, shape in shapes.items()}
    wanted |= {f"{name}.b": shape[:1] for name, shape in wanted.items()}
    views = named_tensors(wanted, names, tensors)
    matrices = [floats(views[f"blk.2.{name}"]) for name in shapes]
    assert (np.concatenate(matrices) == floats(tensors["f.2"])).all()
    vectors = [floats(views[f"blk.2.{name}.b"]) for name in shapes]
    assert (np.concatenate(vectors) == floats(tensors["b.2"])).all()


def test_rows_of_a_matrix_that_is_fused_head_by_head() -> None:
    heads, dim = 3, 4
    tensors = folder(f__2=(heads * 3 * dim, COLUMNS), b__2=(heads * 3 * dim,))
    names = FolderNames(fused_heads("f.{i}")) | fused_heads("b.{i}", "bias")
    parts = [f"blk.2.attn_{one}" for one in "qkv"]
    wanted: dict[str, Shape] = {f"{part}.weight": (heads * dim, COLUMNS) for part in parts}
    wanted |= {f"{part}.bias": (heads * dim,) for part in parts}
    views = named_tensors(wanted, names, tensors, heads)
    for of, end in (("f.2", "weight"), ("b.2", "bias")):
        by_head = floats(tensors[of]).reshape(heads, 3, dim, -1)
        for i, part in enumerate(parts):
            found = floats(views[f"{part}.{end}"]).reshape(heads, dim, -1)
            assert (found == by_head[:, i]).all()


def test_every_other_row_and_number() -> None:
    tensors = folder(m__7=(EXPERTS, 2 * ROWS, COLUMNS))
    values = floats(tensors["m.7"])
    names = FolderNames({"blk.{i}.x": Alternate("m.{i}", -2, 1)})
    view = named_tensors({"blk.7.x": (EXPERTS, ROWS, COLUMNS)}, names, tensors)["blk.7.x"]
    assert (floats(view) == values[:, 1::2]).all()
    assert (floats(view.matrix(2)) == values[2, 1::2]).all()
    odd = found(Alternate("m.{i}", -1, 1), (EXPERTS, 2 * ROWS, COLUMNS // 2), tensors)
    assert (odd == values[:, :, 1::2]).all()
    biases = folder(b__7=(EXPERTS, COLUMNS))
    even = found(Alternate("b.{i}", -1, 0), (EXPERTS, COLUMNS // 2), biases)
    assert (even == floats(biases["b.7"])[:, ::2]).all()


def microscaled(rows: int, columns: int) -> dict[str, GGUFTensor]:
    """Random blocks, and exponents near that of 1."""
    shape = (EXPERTS, rows, columns // 32)
    blocks = RNG.integers(0, 256, (*shape, 16), np.uint8)
    scales = RNG.integers(120, 135, shape, np.uint8)
    return {"b.7": tensor("b.7", blocks, "U8"), "s.7": tensor("s.7", scales, "U8")}


def test_matrices_in_blocks_of_microscaled_floats() -> None:
    """Against the formula of Transformers: a table of 16 values, times 2 ** (exponent - 127)."""
    tensors, shape = microscaled(ROWS, 64), (EXPERTS, ROWS, 64)
    names = FolderNames({"blk.{i}.x": Microscaled("b.{i}", "s.{i}")})
    view = named_tensors({"blk.7.x": shape}, names, tensors)["blk.7.x"]
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    table = np.array(magnitudes + [-one for one in magnitudes], np.float32)
    pairs = tensors["b.7"].data.reshape(-1, 16)
    numbers = np.stack([table[pairs & 15], table[pairs >> 4]], axis=2).reshape(-1, 32)
    exact = np.ldexp(numbers, tensors["s.7"].data.reshape(-1, 1).astype(np.int32) - 127)
    assert view.kind == "MXFP4"
    assert (dequantize("MXFP4", view.data, shape) == exact.reshape(shape)).all()
    one = view.matrix(1)
    assert (dequantize("MXFP4", one.data, shape[1:]) == exact.reshape(shape)[1]).all()


def test_microscaled_floats_that_do_not_fit() -> None:
    origin, shape = Microscaled("b.{i}", "s.{i}"), (EXPERTS, ROWS, 64)
    with pytest.raises(
        ModelFileError, match=r"^tensor s\.7 has shape \(3, 4, 2\), expected \(3, 4, 3"
    ):
        found(origin, (EXPERTS, ROWS, 96), microscaled(ROWS, 64))
    with pytest.raises(UnsupportedModel, match=r"^tensor b\.7: rows of 72 numbers in MXFP4"):
        found(origin, (EXPERTS, ROWS, 72), microscaled(ROWS, 64))
    with pytest.raises(UnsupportedModel, match=r"^tensor b\.7 of type F32; supported: U8"):
        found(origin, shape, folder(b__7=shape, s__7=shape))


GATE, UP = "blk.{i}.gate", "blk.{i}.up"
FUSED = fused("e.{i}.gate_up", GATE, UP)
EXPERTS_NAMES = FolderNames(
    {
        GATE: Either(("e.{i}.{e}.gate", FUSED[GATE])),
        UP: Either(("e.{i}.{e}.up", FUSED[UP])),
    }
)
WANTED: dict[str, Shape] = dict.fromkeys(("blk.0.gate", "blk.0.up"), (EXPERTS, ROWS, COLUMNS))


def test_experts_one_by_one() -> None:
    tensors = folder(
        **{f"e__0__{e}__{n}": (ROWS, COLUMNS) for e in range(EXPERTS) for n in ("gate", "up")}
    )
    views = named_tensors(WANTED, EXPERTS_NAMES, tensors)
    for part in ("gate", "up"):
        view = views[f"blk.0.{part}"]
        own = [floats(tensors[f"e.0.{e}.{part}"]) for e in range(EXPERTS)]
        assert view.shape == (EXPERTS, ROWS, COLUMNS)
        assert (floats(view) == np.stack(own)).all()
        assert [(floats(view.matrix(e)) == own[e]).all() for e in range(EXPERTS)] == [True] * 3


@pytest.mark.parametrize("is_transposed", [False, True])
def test_experts_in_fused_stacks(is_transposed: bool) -> None:
    values = RNG.standard_normal((EXPERTS, 2 * ROWS, COLUMNS), np.float32)
    own = np.ascontiguousarray(values.swapaxes(1, 2)) if is_transposed else values
    names = EXPERTS_NAMES
    if is_transposed:
        names = FolderNames(fused(Transposed("e.{i}.gate_up"), GATE, UP))
    views = named_tensors(WANTED, names, {"e.0.gate_up": tensor("e.0.gate_up", own)})
    for number, part in enumerate(("gate", "up")):
        rows = values[:, number * ROWS : (number + 1) * ROWS]
        view = views[f"blk.0.{part}"]
        assert (floats(view) == rows).all()
        assert all((floats(view.matrix(e)) == rows[e]).all() for e in range(EXPERTS))


def test_what_is_refused_has_the_folder_s_name() -> None:
    shape = (ROWS, COLUMNS)
    with pytest.raises(ModelFileError, match=r"^there is no tensor m\.7$"):
        found("m.{i}", shape, {})
    with pytest.raises(ModelFileError, match=r"^tensor m\.7 has shape \(4, 6\), expected \(6, 4\)"):
        found("m.{i}", (COLUMNS, ROWS), folder(m__7=shape))
    with pytest.raises(ModelFileError, match=r"^tensor m\.7 has shape \(4, 6\), expected \(6, 4\)"):
        found(Transposed("m.{i}"), shape, folder(m__7=shape))
    with pytest.raises(ModelFileError, match=r"^tensor m\.7 has shape \(4, 1, 6\), expected"):
        found(Squeezed("m.{i}"), (COLUMNS, ROWS), folder(m__7=(ROWS, 1, COLUMNS)))
    with pytest.raises(ModelFileError, match=r"^tensor m\.7 has shape \(5, 6\), expected \(4, 6\)"):
        found(Rows("m.{i}", ("blk.{i}.x",)), shape, folder(m__7=(ROWS + 1, COLUMNS)))
    with pytest.raises(ModelFileError, match=r"^there is no tensor m\.7\.1$"):
        found("m.{i}.{e}", (2, *shape), folder(m__7__0=shape))
    with pytest.raises(ModelFileError, match=r"^there is no tensor a\.7$"):
        found(Either(("a.{i}", "b.{i}")), shape, {})
    with pytest.raises(UnsupportedModel, match=r"^tensor m\.7 of type I32; supported: F32, F16"):
        found("m.{i}", shape, {"m.7": tensor("m.7", np.zeros(shape, np.int32), "I32")})
    mixed = folder(m__7__0=shape) | {"m.7.1": tensor("m.7.1", np.zeros(shape, np.float16), "F16")}
    with pytest.raises(UnsupportedModel, match=r"^tensor m\.7\.1 of type F16, and m\.7\.0 of type"):
        found("m.{i}.{e}", (2, *shape), mixed)


def test_tensors_that_nothing_asks_for() -> None:
    shape = (ROWS, COLUMNS)
    tensors = folder(m__7=shape, r__12__freq=(3,))
    names = FolderNames({"blk.{i}.x": "m.{i}"})
    with pytest.raises(UnsupportedModel, match=r"^tensor r\.12\.freq is not part of the arch"):
        named_tensors({"blk.7.x": shape}, names, tensors)
    assert named_tensors({"blk.7.x": shape}, names.ignoring("r.{i}.freq"), tensors)
    with pytest.raises(UnsupportedModel, match=r"^tensor r\.12\.freq is"):
        named_tensors({"blk.7.x": shape}, names.ignoring("r.{i}.fre", "rx{i}xfreq"), tensors)


LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 96, "vocab_size": 300,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    "hidden_act": "silu",
}  # fmt: skip
LAYER: dict[str, Shape] = {
    "input_layernorm": (64,), "post_attention_layernorm": (64,), "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96),
}  # fmt: skip


def llama(**more: Shape) -> dict[str, GGUFTensor]:
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (300, 64), "model.norm.weight": (64,)}
    shapes |= {f"model.layers.0.{name}.weight": shape for name, shape in LAYER.items()}
    return folder(**shapes, **more)


def test_layers_alone_have_no_head() -> None:
    """As models for embeddings are saved."""
    bare = {name.removeprefix("model."): one for name, one in llama().items()}
    for said in ({}, {"tie_word_embeddings": False}):
        plan, tensors = plan_folder({**LLAMA, **said}, bare)
        assert (
            plan.spec.tied_head and tensors["token_embd.weight"].name == "model.embed_tokens.weight"
        )
    with pytest.raises(UnsupportedModel, match=r"lm_head"):
        plan_folder(LLAMA, {**bare, "lm_head.weight": bare["embed_tokens.weight"]})


def test_a_head_of_its_own_is_used() -> None:
    assert plan_folder(LLAMA, llama())[0].spec.tied_head
    plan, tensors = plan_folder(LLAMA, llama(lm_head__weight=(300, 64)))
    assert not plan.spec.tied_head and tensors["output.weight"].name == "lm_head.weight"
    with pytest.raises(ModelFileError, match=r"^there is no tensor lm_head\.weight$"):
        plan_folder({**LLAMA, "tie_word_embeddings": False}, llama())


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_folders_of_gpt2_with_and_without_their_prefix(prefix: str) -> None:
    config = {
        "model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2, "n_positions": 32,
        "vocab_size": 300, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
    }  # fmt: skip
    shapes = {
        "wte.weight": (300, 64), "wpe.weight": (32, 64), "h.0.attn.c_attn.weight": (64, 192),
        "h.0.attn.c_attn.bias": (192,), "h.0.attn.c_proj.weight": (64, 64),
        "h.0.mlp.c_fc.weight": (64, 256), "h.0.mlp.c_proj.weight": (256, 64),
        "h.0.mlp.c_fc.bias": (256,), "h.0.attn.bias": (1, 1, 32, 32),
    }  # fmt: skip
    vectors = ["h.0.attn.c_proj.bias", "h.0.mlp.c_proj.bias"]
    vectors += [f"{name}.{end}" for name in ("ln_f", "h.0.ln_1", "h.0.ln_2") for end in NORM_PARTS]
    tensors = folder(**{prefix + name: (64,) for name in vectors})
    tensors |= folder(**{prefix + name: shape for name, shape in shapes.items()})
    plan, found = plan_folder(config, tensors)
    assert plan.spec.learned_positions == 32
    fused = floats(tensors[f"{prefix}h.0.attn.c_attn.weight"])
    assert (floats(found["blk.0.attn_k.weight"]) == fused.T[64:128]).all()


def test_rows_of_queries_and_keys_keep_their_order() -> None:
    tensors = llama(model__layers__0__self_attn__rotary_emb__inv_freq=(16,))
    plan, _ = plan_folder(LLAMA, tensors)
    sources = [one for matrix in plan.matrices.values() for one in matrix]
    assert {one.paired for one in sources} == {None}
    assert [one.tensor for one in plan.matrices["layers.0.qkv.q_k_v"]] == [
        f"blk.0.attn_{name}.weight" for name in "qkv"
    ]


def test_a_config_at_odds_with_the_weights() -> None:
    with pytest.raises(ModelFileError, match=r"model\.embed_tokens\.weight has shape \(300, 64\)"):
        plan_folder({**LLAMA, "vocab_size": 301}, llama())
    with pytest.raises(ModelFileError, match=r"there is no tensor model\.layers\.1\."):
        plan_folder({**LLAMA, "num_hidden_layers": 2}, llama())
    with pytest.raises(
        ModelFileError, match=r"there is no tensor model\.layers\.0\.mlp\.\w+\.bias"
    ):
        plan_folder({**LLAMA, "mlp_bias": True}, llama())
    wider = {**LLAMA, "intermediate_size": 128}
    with pytest.raises(ModelFileError, match=r"\(96, 64\), expected \(128, 64\)"):
        plan_folder(wider, llama())
