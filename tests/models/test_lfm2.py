"""LFM2: layers that keep a state instead of pages, among others that have attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from architecture_tools import CHUNKS, TOKENS, relative_error, runner_of
from decoder_reference import Facts, ReferenceDecoder
from pairs import every_other

from mlc_llm.errors import MLCError, ModelFileError, UnsupportedModel
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.recurrent import ShortConvSpec
from mlc_llm.models.registry import read_config, read_gguf
from mlc_llm.runtime.batch import Batch, BatchRow, Sampling
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE, byte_tokenizer_metadata
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

HIDDEN, WIDE, HEADS, KV_HEADS, DIM = 64, 96, 4, 2, 16
HAS_ATTENTION = (False, True, False, False)
FACTS = Facts("lfm2", interleaved=False, last_norm="token_embd_norm")
METADATA: dict[str, Any] = {
    "block_count": len(HAS_ATTENTION), "context_length": 512, "embedding_length": HIDDEN,
    "feed_forward_length": WIDE, "attention.head_count": HEADS,
    "attention.head_count_kv": [KV_HEADS * has for has in HAS_ATTENTION],
    "attention.key_length": DIM, "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 1e6, "shortconv.l_cache": 4,
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"], "num_hidden_layers": 4, "max_position_embeddings": 512,
    "hidden_size": HIDDEN, "block_ff_dim": 132, "block_multiple_of": 32,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "norm_eps": 1e-5,
    "rope_theta": 1e6, "conv_L_cache": 4,
    "vocab_size": VOCABULARY_SIZE, "conv_bias": False, "full_attn_idxs": [1],
    "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "tie_embedding": True,
}  # fmt: skip


def sizes(kernel: int) -> dict[str, tuple[int, ...]]:
    query, kv = HEADS * DIM, KV_HEADS * DIM
    found: dict[str, tuple[int, ...]] = {
        "token_embd": (VOCABULARY_SIZE, HIDDEN),
        "token_embd_norm": (HIDDEN,),
    }
    for i, has in enumerate(HAS_ATTENTION):
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "ffn_gate": (WIDE, HIDDEN),
            "ffn_up": (WIDE, HIDDEN), "ffn_down": (HIDDEN, WIDE),
        }  # fmt: skip
        if has:
            layer |= {
                "attn_q": (query, HIDDEN), "attn_k": (kv, HIDDEN), "attn_v": (kv, HIDDEN),
                "attn_output": (HIDDEN, query), "attn_q_norm": (DIM,), "attn_k_norm": (DIM,),
            }  # fmt: skip
        else:
            layer |= {
                "shortconv.in_proj": (3 * HIDDEN, HIDDEN), "shortconv.conv": (HIDDEN, kernel),
                "shortconv.out_proj": (HIDDEN, HIDDEN),
            }  # fmt: skip
        found |= {f"blk.{i}.{name}": size for name, size in layer.items()}
    return found


def write_model(path: Path, kernel: int = 4, **changes: Any) -> Path:
    rng, tensors = np.random.default_rng(kernel), {}
    for name, size in sizes(kernel).items():
        values = rng.standard_normal(size) * (0.1 if len(size) == 1 else 1.5 / np.sqrt(size[1]))
        values = (values + (len(size) == 1)).astype(np.float32)
        tensors[f"{name}.weight"] = TensorData.quantized(values, "F32")
    own = {f"lfm2.{key}": value for key, value in (METADATA | changes).items()}
    general = {"general.architecture": "lfm2", "general.name": "random"}
    write_gguf(path, {**general, **own, **byte_tokenizer_metadata()}, tensors)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("lfm2") / "model.gguf")


@pytest.fixture(scope="module")
def exact(model: Path) -> npt.NDArray[np.float64]:
    return ReferenceDecoder(model, FACTS).logits(TOKENS)


@pytest.fixture(params=["reference", None], ids=["reference", "this-machine"])
def runner(model: Path, request: pytest.FixtureRequest) -> ModelRunner:
    return runner_of(model, model.parent, request.param)


WORST = {"reference": 1e-5, "portable": 1e-5, None: 3e-3}
"""By kernels, None being this machine's, which keep keys and values in float16."""


@pytest.mark.one_of(6)
@pytest.mark.parametrize(("kernel", "kernels"), every_other([2, 3, 7], WORST))
def test_logits_against_numpy(tmp_path: Path, kernel: int, kernels: str | None) -> None:
    path = write_model(tmp_path / "model.gguf", kernel, **{"shortconv.l_cache": kernel})
    expected = ReferenceDecoder(path, FACTS).logits(TOKENS)
    found = runner_of(path, tmp_path, kernels)
    for chunk in CHUNKS:
        logits = found.logits(TOKENS, chunk=chunk)
        assert relative_error(logits, expected) <= WORST[kernels], f"in chunks of {chunk}"
        found.check_integrity()


def test_chunks_change_no_bit(runner: ModelRunner) -> None:
    whole = runner.logits(TOKENS)
    for chunk in (1, 2, 3, 7, 64):
        assert (runner.logits(TOKENS, chunk=chunk) == whole).all()


def ask(runner: ModelRunner, *rows: tuple[int, list[int]]) -> list[float]:
    """The log-probability of token 7 behind each row."""
    asked = Sampling(temperature=0, logit_bias={7: 1e4}, top_logprobs=0)
    output = runner.run(Batch([BatchRow(seq_id, ids, [asked]) for seq_id, ids in rows]))
    assert [sample.token_id for (sample,) in output.samples] == [7] * len(rows)
    return [sample.logprob or 0.0 for (sample,) in output.samples]


def alone(runner: ModelRunner, tokens: list[int]) -> float:
    """The same, in a sequence that nothing happened to."""
    runner.add_sequence(100)
    (found,) = ask(runner, (100, tokens))
    runner.remove_sequence(100)
    return found


def test_sequences_of_a_batch_keep_apart(runner: ModelRunner) -> None:
    texts = [TOKENS[:20], TOKENS[20:23], TOKENS[30:47]]
    done = [0, 0, 0]
    for i in range(3):
        runner.add_sequence(i)
    for counts in ((5, 1, 9), (1, 1, 1), (7, 1, 7), (7, 0, 0)):
        rows = [(i, texts[i][done[i] : done[i] + n]) for i, n in enumerate(counts) if n]
        found = dict(zip([i for i, _ in rows], ask(runner, *rows), strict=True))
        done = [at + n for at, n in zip(done, counts, strict=True)]
        runner.check_integrity()
        for i, logprob in found.items():
            assert logprob == alone(runner, texts[i][: done[i]])


def test_a_fork_goes_its_own_way(runner: ModelRunner) -> None:
    start, left, right = TOKENS[:18], TOKENS[20:26], TOKENS[40:43]
    runner.add_sequence(0)
    ask(runner, (0, start))
    runner.fork_sequence(0, 1, len(start))
    found = ask(runner, (0, left), (1, right))
    assert found == [alone(runner, start + left), alone(runner, start + right)]
    runner.remove_sequence(0)
    assert ask(runner, (1, left)) == [alone(runner, start + right + left)]
    runner.check_integrity()


def test_a_state_goes_to_another_runner(model: Path) -> None:
    first, second = (runner_of(model, model.parent, "reference") for _ in range(2))
    start, left = TOKENS[:18], TOKENS[20:26]
    first.add_sequence(0)
    ask(first, (0, start))
    second.add_sequence(0)
    ask(second, (0, left))
    second.import_pages(1, first.export_pages(0), len(start))
    assert ask(second, (1, left)) == [alone(first, start + left)]
    second.check_integrity()


def test_states_are_kept_in_the_middle_of_a_step(runner: ModelRunner) -> None:
    start, left, right = TOKENS[:18], TOKENS[20:26], TOKENS[40:43]
    for i in (0, 1):
        runner.add_sequence(i)
    asked = Sampling(temperature=0, logit_bias={7: 1e4}, top_logprobs=0)
    rows = [BatchRow(0, start, [asked], keep_states=(11, 17)), BatchRow(1, TOKENS[5:9], [asked])]
    found = [one.logprob for (one,) in runner.run(Batch(rows)).samples]
    assert found == [alone(runner, start), alone(runner, TOKENS[5:9])]
    assert [*runner.kept_states(0)] == [11, 17] and not runner.kept_states(1)
    runner.remove_sequence(1)
    for child, length in ((2, 17), (3, 11)):
        runner.fork_sequence(0, child, length)
    found = ask(runner, (2, left), (3, right), (0, right))
    assert found[:2] == [alone(runner, start[:17] + left), alone(runner, start[:11] + right)]
    assert found[2] == alone(runner, start + right)
    runner.rollback_sequence(0, len(start + right) - 11)
    assert ask(runner, (0, left)) == [alone(runner, start[:11] + left)]
    runner.check_integrity()


def test_a_step_that_fails_changes_no_state(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.add_sequence(0)
    ask(runner, (0, TOKENS[:10]))
    draw = runner._sampler.draw

    def fails(*args: Any) -> Any:
        draw(*args)
        raise MLCError("behind the model")

    with monkeypatch.context() as patch:
        patch.setattr(runner._sampler, "draw", fails)
        with pytest.raises(MLCError):
            ask(runner, (0, TOKENS[10:14]))
    runner.check_integrity()
    assert ask(runner, (0, TOKENS[10:12])) == [alone(runner, TOKENS[:12])]


def test_limits_say_that_states_cannot_be_cut(runner: ModelRunner) -> None:
    assert runner.limits.has_states and runner.limits.only_whole and not runner.limits.windows
    runner.add_sequence(0)
    ask(runner, (0, TOKENS[:10]))
    ask(runner, (0, TOKENS[10:12]))
    with pytest.raises(AssertionError, match="cannot be cut"):
        runner.rollback_sequence(0, 1)


def test_spec_from_config_json(model: Path) -> None:
    file = GGUFFile.open(model)
    spec = read_gguf(file.metadata, file.tensors).spec
    found = read_config(CONFIG)
    assert (found.layers, found.tied_head) == (spec.layers, True)
    assert list(found.recurrent_layers) == [0, 2, 3]
    types = ["conv", "full_attention", "conv", "conv"]
    newer = {k: v for k, v in CONFIG.items() if k not in ("block_ff_dim", "full_attn_idxs")}
    newer |= {"layer_types": types, "intermediate_size": 132}
    assert read_config(newer) == found
    plain = read_config({**CONFIG, "block_auto_adjust_ff_dim": False})
    assert plain.layers[0].feed_forward.intermediate == 132
    assert isinstance(plain.layers[0].mixer, ShortConvSpec)


@pytest.mark.parametrize(
    "wrong", [2, [2], [0, 2, 0, -1], [0, 2, 0, 3], [0, 0, 0, 0], [0, 2, 0, "x"]]
)
def test_heads_of_layers_are_checked(model: Path, wrong: Any) -> None:
    file = GGUFFile.open(model)
    metadata = {**file.metadata, "lfm2.attention.head_count_kv": wrong}
    with pytest.raises(ModelFileError, match=r"lfm2\.attention\.head_count_kv is "):
        read_gguf(metadata, file.tensors)


def test_what_is_not_computed_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="conv_bias is True"):
        read_config({**CONFIG, "conv_bias": True})
    with pytest.raises(UnsupportedModel, match="layer 0: a convolution over 1 token"):
        read_config({**CONFIG, "conv_L_cache": 1})
    own = {f"lfm2.{key}": value for key, value in METADATA.items()}
    with pytest.raises(UnsupportedModel, match=r"lfm2\.attention\.sliding_window is 16"):
        read_gguf({"general.architecture": "lfm2", **own, "lfm2.attention.sliding_window": 16}, {})
