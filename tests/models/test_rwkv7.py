"""RWKV-7: each layer keeps a state, and its network the token before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from architecture_tools import CHUNKS, TOKENS, relative_error, runner_of
from rwkv7_reference import HIDDEN, LAYERS, RANKS, WIDE, logits, tensors_of, write_model

from mlc_llm.backends.registry import backend_of
from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.recurrent import Rwkv7Spec
from mlc_llm.models.registry import read_config, read_gguf
from mlc_llm.runtime.batch import Batch, BatchRow, Sampling
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("rwkv7") / "model.gguf")


@pytest.fixture(params=["reference", None], ids=["reference", "this-machine"])
def runner(model: Path, request: pytest.FixtureRequest) -> ModelRunner:
    return runner_of(model, model.parent, request.param)


WORST = {"reference": 1e-5, "portable": 1e-5, None: 1e-4}


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("head_dim", "kernels"), [(32, "reference"), (16, None), (64, "portable")])
def test_logits_against_numpy(tmp_path: Path, head_dim: int, kernels: str | None) -> None:
    path = write_model(tmp_path / "model.gguf", head_dim, seed=head_dim)
    expected = logits(tensors_of(head_dim, head_dim), TOKENS, head_dim)
    found = runner_of(path, tmp_path, kernels)
    for chunk in CHUNKS:
        got = found.logits(TOKENS, chunk=chunk)
        assert relative_error(got, expected) <= WORST[kernels], f"in chunks of {chunk}"
        found.check_integrity()


@pytest.mark.one_of(2)
def test_chunks_change_no_bit(runner: ModelRunner) -> None:
    whole = runner.logits(TOKENS)
    for chunk in (1, 2, 3, 7, 64):
        assert (runner.logits(TOKENS, chunk=chunk) == whole).all()


def ask(runner: ModelRunner, *rows: tuple[int, list[int]]) -> list[float]:
    """The log-probability of token 7 behind each row."""
    asked = Sampling(temperature=0, logit_bias={7: 1e4}, top_logprobs=0)
    output = runner.run(Batch([BatchRow(seq_id, ids, [asked]) for seq_id, ids in rows]))
    return [sample.logprob or 0.0 for (sample,) in output.samples]


def alone(runner: ModelRunner, tokens: list[int]) -> float:
    """The same, in a sequence that nothing happened to."""
    runner.add_sequence(100)
    (found,) = ask(runner, (100, tokens))
    runner.remove_sequence(100)
    return found


def test_sequences_of_a_batch_and_forks_keep_apart(runner: ModelRunner) -> None:
    start, left, right = TOKENS[:18], TOKENS[20:26], TOKENS[40:43]
    for i in (0, 1):
        runner.add_sequence(i)
    found = ask(runner, (0, start), (1, right))
    assert found == [alone(runner, start), alone(runner, right)]
    runner.fork_sequence(0, 2, len(start))
    found = ask(runner, (0, left), (1, left), (2, right))
    assert found == [alone(runner, one) for one in (start + left, right + left, start + right)]
    runner.check_integrity()


def test_states_are_kept_in_the_middle_of_a_step(runner: ModelRunner) -> None:
    start, left = TOKENS[:18], TOKENS[20:26]
    runner.add_sequence(0)
    asked = Sampling(temperature=0, logit_bias={7: 1e4}, top_logprobs=0)
    runner.run(Batch([BatchRow(0, start, [asked], keep_states=(11, 17))]))
    for child, length in ((2, 17), (3, 11)):
        runner.fork_sequence(0, child, length)
    found = ask(runner, (2, left), (3, left))
    assert found == [alone(runner, start[:17] + left), alone(runner, start[:11] + left)]
    runner.rollback_sequence(0, len(start) - 11)
    assert ask(runner, (0, left)) == [alone(runner, start[:11] + left)]
    runner.check_integrity()


CONFIG: dict[str, Any] = {
    "architectures": ["RWKV7ForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
    "head_dim": 32, "intermediate_size": WIDE, "vocab_size": VOCABULARY_SIZE,
    "decay_low_rank_dim": RANKS["w"], "a_low_rank_dim": RANKS["a"], "v_low_rank_dim": RANKS["v"],
    "gate_low_rank_dim": RANKS["g"], "norm_eps": 1e-5, "hidden_act": "sqrelu",
}  # fmt: skip


def test_spec_from_config_json(model: Path) -> None:
    file = GGUFFile.open(model)
    spec = read_gguf(file.metadata, file.tensors).spec
    found = read_config(CONFIG)
    first, second = found.layers[:2]
    assert isinstance(first.mixer, Rwkv7Spec) and isinstance(second.mixer, Rwkv7Spec)
    assert (first.mixer.value_rank, second.mixer.value_rank) == (0, RANKS["v"])
    assert first.mixer.eps == 32 * 1e-5
    of_file = tuple(one.mixer for one in spec.layers)
    of_folder = tuple(one.mixer for one in found.layers)
    assert of_file == tuple(replace(one, eps=64e-5) for one in of_folder)
    kept = tuple(one.state_shapes for one in first.keepers)
    assert kept == (((1, HIDDEN), (2, 32, 32)), ((1, HIDDEN),))
    assert [i for i, _ in found.keepers] == [0, 0, 1, 1, 2, 2]
    assert found.embedding_norm and found.norm == "layer"
    plain = {key: value for key, value in CONFIG.items() if key != "intermediate_size"}
    assert read_config(plain).layers[0].feed_forward.intermediate == 4 * HIDDEN


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "relu"), ("norm_first", False), ("norm_bias", False), ("attn", {"a": 1}),
        ("value_dim", 2 * HIDDEN), ("tie_word_embeddings", True),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedModel, match=f"{key} is "):
        read_config({**CONFIG, key: value})


def test_sizes_that_contradict_each_other(tmp_path: Path) -> None:
    for changes, words in (
        ({"head_dim": 48}, "head_dim is 48"),
        ({"num_heads": 4}, "num_heads is 4"),
    ):
        with pytest.raises(ModelFileError, match=words):
            read_config({**CONFIG, **changes})
    file = GGUFFile.open(write_model(tmp_path / "model.gguf"))
    for key, value, words in (
        ("wkv.head_size", 48, r"rwkv7\.wkv\.head_size is 48"),
        ("attention.gate_lora_rank", 64, "tensor blk.0.time_mix_g1.weight has shape"),
        ("attention.iclr_lora_rank", 0, r"iclr_lora_rank is 0"),
    ):
        with pytest.raises(ModelFileError, match=words):
            read_gguf({**file.metadata, f"rwkv7.{key}": value}, file.tensors)
    with pytest.raises(UnsupportedModel, match="token_shift_count is 1"):
        read_gguf({**file.metadata, "rwkv7.token_shift_count": 1}, file.tensors)


def test_ranks_that_cpu_kernels_cannot_compute_are_named() -> None:
    spec = read_config({**CONFIG, "v_low_rank_dim": 16})
    with pytest.raises(UnsupportedModel, match=r"ranks 32, 64, 96, 16 \(multiples of 32\)"):
        backend_of("avx2").check(spec)
    backend_of("reference").check(spec)
