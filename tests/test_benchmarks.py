"""The comparison with peers, without its measurements: options, the table, what peers print."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import compare
from compared_models import Shape, sizes_of, write_random
from divergence import PIECE, PROMPT, mean_divergences, pieces
from figure_rows import LLAMA, ONE_B, Row, markdown
from figures import table, worst_point
from ours import PRECISION_VARIABLE, precision_asked
from ours_worker import Worker
from peers import KINDS, make_peer
from peers.base import LineWorker, Missing, Trial, python_environment
from peers.ik_llama import IkLlama
from peers.llama_cpp import LOADED, TILES, LlamaCpp, batched_speed
from peers.vllm import _halves_apart
from real_shapes import REAL_SHAPES, RealShape, kind_of, tensor_sizes, write_real
from report import BEGIN, END, block, disturbance, speeds, text, write_block
from rounds import OURS, Clock, Results, attempt, speed_round

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.support.model_source import default_model_path
from mlc_llm.tokenizers import Tokenizer

BATCHED = """
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|    64 |     16 |    8 |    640 |    5.035 |   101.70 |    3.919 |    32.66 |    8.953 |    71.48 |
"""


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rounds.SETTLE", 0.0)


def decode_results(ours: list[float], theirs: list[float], bandwidth: float) -> Results:
    results = Results(facts={f"sizes {ONE_B}": {"weights": 10**9, "kv_per_token": 0}})
    for mine, other in zip(ours, theirs, strict=True):
        results.add(ONE_B, "decode", OURS, mine)
        results.add(ONE_B, "decode", LLAMA, other)
        results.add(ONE_B, "decode, limits", "bandwidth", bandwidth)
    return results


def test_options() -> None:
    given = compare.parse(["--peer-dir", "x", "--quick", "--precisions", "fast", "--peers", "vLLM"])
    assert (given.rounds, given.precisions, given.peers) == (2, ["fast"], ["vLLM"])
    assert compare.parse(["--peer-dir", "x"]).rounds == 5
    assert compare.parse(["--peer-dir", "x"]).precisions == ("fast-prompts", "fast")
    assert compare.parse(["--peer-dir", "x", "--precisions"]).precisions == []
    assert compare.parse(["--report", "x.json"]).report == Path("x.json")


@pytest.mark.parametrize(
    "wrong", [[], ["--peer-dir", "x", "--precisions", "quick"], ["--peers", "nobody"]]
)
def test_wrong_options_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.parse(wrong)
    assert "error" in capsys.readouterr().err


def test_rows_compare_medians_and_the_bound() -> None:
    rows = table(decode_results([18.0, 20.0, 19.0], [10.0, 10.0, 9.0], bandwidth=20.0))
    bound, peer, ratio = rows
    assert peer.reached is True and peer.target == "≥ 1 × the best peer (llama.cpp)"
    assert bound.reached is True and bound.measured.startswith("95% (90% to 100%)")
    assert ratio.reached is True and ratio.measured.startswith("1.90 (1.80 to 2.11)")
    (slow, ahead, slower) = table(decode_results([17.0], [10.0], bandwidth=20.0))
    assert slow.reached is False and slower.reached is False and ahead.reached is True


def test_a_row_without_a_peer_is_not_measured() -> None:
    results = Results()
    results.add(ONE_B, "32 streams", OURS, 5.0)
    of_exact, of_any = table(results)
    assert of_exact.target == "≥ 1 × the best 4-bit peer" and of_any.target == "≥ 2 × the best peer"
    for row in (of_exact, of_any):
        assert row.reached is None and "not measured" in markdown([row])


def test_tables_are_markdown() -> None:
    assert markdown([Row("a", "b", "c", False)]).splitlines()[-1] == "| a | b | c | **no** |"
    assert "| decode | 2.00 (2.00 to 2.00) | – |" in speeds(_two_tests(), ONE_B)


def test_the_marked_part_of_a_document_is_written_anew(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text(f"before\n{BEGIN} -->\nold\n{END}\nafter\n")
    write_block(document, block(_two_tests(), ["plots/a.png"]))
    written = document.read_text()
    assert written.startswith(f"before\n{BEGIN} -->\n") and written.endswith(f"{END}\nafter\n")
    assert "![a](plots/a.png)" in written and "| prefill 512 |" in written and "old" not in written
    document.write_text("no marks")
    with pytest.raises(ValueError, match="marks"):
        write_block(document, "")
    with pytest.raises(SystemExit):  # before anything is measured
        compare.parse(["--peer-dir", "x", "--docs", str(document)])


def test_a_busy_machine_is_named() -> None:
    calm, busy = Results(loads=[0.5, 2.4]), Results(loads=[2.0, 7.5])
    assert not disturbance(calm)
    assert "load up to 7.5" in text(busy)


def _two_tests() -> Results:
    results = Results()
    results.add(ONE_B, "decode", OURS, 2.0)
    results.add(ONE_B, "prefill 512", LLAMA, 3.0)
    return results


def test_a_cliff_is_the_point_below_its_neighbours() -> None:
    assert worst_point({1: 10.0, 2: 20.0, 4: 40.0}) == (pytest.approx(1.0), 2)
    share, where = worst_point({1: 10.0, 2: 20.0, 4: 20.0, 8: 80.0})
    assert where == 4 and share == pytest.approx(0.5)


def test_batched_speed_is_the_decoding_column() -> None:
    assert batched_speed(BATCHED, 8) == 32.66
    with pytest.raises(Missing):
        batched_speed(BATCHED, 4)


def test_divergence_is_told_apart_by_place() -> None:
    assert [len(piece) for piece in pieces(range(2 * PIECE + 5))] == [PIECE, PIECE]
    with pytest.raises(ValueError, match="shorter"):
        pieces(range(PIECE - 1))
    first = np.zeros((1, PIECE, 2), np.float32)
    second = first.copy()
    second[0, PROMPT - 1, 0] = 1.0
    found = mean_divergences(first, second)
    assert found["inside"] == 0 and found["behind"] > 1e-3


def test_the_precision_of_prompts_is_asked_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(PRECISION_VARIABLE, raising=False)
    assert precision_asked() == "exact"
    monkeypatch.setenv(PRECISION_VARIABLE, "fast")
    assert precision_asked() == "fast"
    monkeypatch.setenv(PRECISION_VARIABLE, "quick")
    with pytest.raises(SystemExit, match="one of exact, fast"):
        precision_asked()


def test_the_configuration_of_tiles_is_kept_once(tmp_path: Path) -> None:
    side = LlamaCpp(tmp_path, 2)
    side.complete(tmp_path)
    file = tmp_path / TILES
    file.parent.mkdir(parents=True)
    file.write_text(f"before\n{LOADED}\n")
    side.complete(tmp_path)
    once = file.read_text()
    side.complete(tmp_path)
    assert file.read_text() == once and once.count("memory") == 1 and once.endswith(f"{LOADED}\n")


def test_rows_of_queries_get_their_order_of_transformers() -> None:
    # two heads of four rows: GGUF has row 0 beside row 2, which turn together
    stored = np.array([0, 2, 1, 3, 4, 6, 5, 7], np.float32)[:, np.newaxis]
    assert _halves_apart(stored, 2)[:, 0].tolist() == [*range(8)]


def test_options_of_a_fork_differ() -> None:
    assert IkLlama.single(Trial("decode", 128, 32)) == ("-p", "0", "-n", "0", "-gp", "128,32")


@pytest.mark.parametrize("name", KINDS)
def test_peers_are_made_without_being_installed(name: str, tmp_path: Path) -> None:
    assert make_peer(name, tmp_path, 2).name == name
    assert not list(tmp_path.iterdir())


def test_the_process_whose_memory_counts_holds_no_compiler() -> None:
    folder = str(Path(compare.__file__).parent)
    code = f"import sys; sys.path.insert(0, {folder!r}); import ours_worker; "
    code += "raise SystemExit(any(name == 'tvm' or name == 'machine' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_packages_are_installed_again_when_another_release_is_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("peers.base.run", lambda command, **_: asked.append(command[-1]))
    for wanted in (["a==1", "b"], ["a==1", "b"], ["a==2", "b"]):
        python_environment(tmp_path, *wanted)
    assert asked == [tmp_path, "a==1", "b", tmp_path, "a==2", "b"]


def test_a_worker_that_ends_is_missing_with_its_last_words() -> None:
    worker = LineWorker([sys.executable, "-c", "raise SystemExit('no such model')"], {})
    with pytest.raises(Missing, match="no such model"):
        worker.ask({"do": "anything"})
    worker.close()


def test_a_worker_answers_and_refuses_by_line() -> None:
    code = """if True:
        import sys
        for _ in sys.stdin:
            print('noise', '{', '{"level": "info"}', '{"value": 3}', sep='\\n', flush=True)
    """
    worker = LineWorker([sys.executable, "-c", code], {})
    assert worker.measure(Trial("t", 1)) == 3.0
    worker.close()


def test_a_worker_is_told_of_a_test_what_ours_takes() -> None:
    code = """if True:
        import json, sys
        for line in sys.stdin:
            told = json.loads(line).keys() - {"do"}
            print(json.dumps({"value": told == set(sys.argv[1:])}), flush=True)
    """
    taken = set(inspect.signature(Worker.measure).parameters) - {"self"}
    worker = LineWorker([sys.executable, "-c", code, *taken], {})
    assert worker.measure(Trial("t", 1, peers=False)) == 1.0
    worker.close()


class FakeSide:
    def __init__(self, name: str, log: list[str], *, broken: bool = False) -> None:
        self.name, self._log, self._broken = name, log, broken

    def install(self) -> str:
        return "1"

    def open(self, model: Path) -> Any:
        return self

    def wait(self) -> None:
        self._log.append(f"{self.name} loaded")

    def cold_start(self, model: Path) -> float:
        return 1.0

    def measure(self, test: Trial) -> float:
        if self._broken:
            raise Missing("it cannot")
        self._log.append(f"{self.name} {test.name}")
        return 1.0

    def close(self) -> None:
        self._log.append(f"{self.name} closed")


def test_sides_take_turns_and_a_broken_one_is_noted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rounds.add_limits", lambda *_: None)
    log: list[str] = []
    sides = [FakeSide("a", log), FakeSide("b", log), FakeSide("c", log, broken=True)]
    results = Results()
    tests = [Trial("one", 1), Trial("two", 1)]
    speed_round(results, "m", [(side, tmp_path) for side in sides], tests, Clock(None))
    loaded, closed = [[f"{name} {what}" for name in "abc"] for what in ("loaded", "closed")]
    assert log == [*loaded, "a one", "b one", "b two", "a two", *reversed(closed)]
    assert results.missing == {"c, one, m": "it cannot", "c, two, m": "it cannot"}
    assert results.median("m", "two", "b") == 1.0


def test_some_tests_are_for_ours_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rounds.add_limits", lambda *_: None)
    log: list[str] = []
    results = Results()
    sides = [(FakeSide(name, log), tmp_path) for name in "ab"]
    tests = [Trial("all", 1), Trial("long", 9, peers=False)]
    speed_round(results, "m", sides, tests, Clock(None), peers={"b"})
    assert log[2:-2] == ["a all", "b all", "a long"]
    assert not results.missing


def test_nothing_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    log: list[str] = []
    results = Results()
    sides = [(FakeSide("a", log), tmp_path)]
    speed_round(results, "m", sides, [Trial("one", 1)], Clock(-1.0))
    assert log == [] and not results.samples


@pytest.mark.model
def test_an_interrupted_run_keeps_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, default_model: Path
) -> None:
    class Interrupted(FakeSide):
        def prepare(self, model: Path) -> None:
            pass

        def measure(self, test: Trial) -> float:
            if self._log.count(f"{self.name} decode"):
                raise KeyboardInterrupt
            return super().measure(test)

    log: list[str] = []
    monkeypatch.setattr(compare, "Ours", lambda threads, name="ours", _={}: Interrupted(name, log))
    monkeypatch.setattr(compare, "make_peer", lambda name, *_: FakeSide(name, log, broken=True))
    monkeypatch.setattr("rounds.add_limits", lambda *_: None)
    options = ["--peer-dir", str(tmp_path), "--figures", "speed", "--models", "default", "1b-q4_0"]
    monkeypatch.setattr(compare, "write_random", lambda *_: None)
    out = tmp_path / "found.json"
    arguments = compare.parse([*options, "--peers", "vLLM", "--precisions", "--out", str(out)])
    monkeypatch.setattr(compare, "model_file", lambda name, *_: _only_default(name, default_model))
    results = compare.measured(arguments)
    assert results.sides("default", "decode") == {"ours": [1.0]}
    assert results.missing["vLLM, decode, default"] == "it cannot"
    assert results.configuration["rounds"] == "1, the last not whole"
    assert results.missing["model 1b-q4_0"] == "it cannot be made"
    assert json.loads(out.read_text())["samples"] == results.samples


def _only_default(name: str, path: Path) -> Path:
    if name != "default":
        raise Missing("it cannot be made")
    return path


def test_what_nobody_foresaw_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    results = Results()
    assert attempt(results, "x", lambda: 1 // 0) is None
    assert results.missing["x"].startswith("ZeroDivisionError")
    assert "1 // 0" in capsys.readouterr().err


@pytest.mark.parametrize("speed", [0.0, float("nan"), float("inf")])
def test_what_is_no_speed_is_left_out(
    speed: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(FakeSide, "measure", lambda *_: speed)
    results = Results()
    sides = [(FakeSide("a", []), tmp_path)]
    speed_round(results, "m", sides, [Trial("one", 1)], Clock(None))
    assert not results.samples and results.missing == {"a, one, m": f"it said {speed} tok/s"}


@pytest.mark.model
def test_a_random_model_is_one_that_can_be_read(tmp_path: Path) -> None:
    shape = Shape("small", 64, 2, 4, 2, 16, 96, 1000)
    path = write_random(tmp_path / "small.gguf", shape)
    sizes = sizes_of(path)
    layer = 64 * 64 * 2 + 2 * 32 * 64 + 3 * 96 * 64
    assert sizes.operations == 2 * 2 * layer
    assert sizes.kv_per_token == 2 * 2 * 2 * 2 * 16
    assert sizes.weights < sizes.file
    file = GGUFFile.open(path)
    assert file.tensors["token_embd.weight"].shape == (1000, 64)
    assert Tokenizer.from_gguf_metadata(file.metadata).vocab_size == 1000


REAL_TINY = {
    "dense": RealShape("tiny", "llama", 256, 9, 4, 2, 64, 288, 1000, 1e4, rope_factors=True),
    "odd": RealShape(
        "tiny", "gemma3", 96, 2, 2, 1, 48, 256, 60_000, 1e6, qk_norms=(48, 48), post_norms=True,
        more={"attention.sliding_window": 64},
    ),
    "experts": RealShape(
        "tiny", "olmoe", 256, 2, 4, 4, 64, 256, 1000, 1e4, tied_head=False, qk_norms=(256, 256),
        experts=5, experts_per_token=2,
    ),
}  # fmt: skip


@pytest.mark.model
@pytest.mark.parametrize("name", REAL_TINY)
def test_a_model_of_a_real_shape_is_one_that_can_be_read(tmp_path: Path, name: str) -> None:
    shape = REAL_TINY[name]
    source = GGUFFile.open(default_model_path()).metadata
    file = GGUFFile.open(write_real(tmp_path / "tiny.gguf", shape, source))
    read_gguf(file.metadata, file.tensors)
    assert Tokenizer.from_gguf_metadata(file.metadata).vocab_size == shape.vocabulary
    for tensor in file.tensors.values():
        values = dequantize(tensor.kind, tensor.data, tensor.shape)
        size = np.sqrt((values**2).mean()) * (tensor.shape[-1] ** 0.5 if values.ndim > 1 else 1)
        assert 0.9 < size < 1.1, tensor.name
    sizes = sizes_of(tmp_path / "tiny.gguf")
    if name == "experts":
        layer = 4 * 256 * 256 + 5 * 256 + 2 * 3 * 256 * 256
        assert sizes.operations == 2 * 2 * layer
        table, stacks = 1000 * 256 * 144 // 256, 2 * (2 * 144 + 210) * 5 * 256
        assert abs(sizes.file - sizes.weights - table - 0.6 * stacks) < 200_000  # the header


def test_the_types_of_q4_k_m() -> None:
    """As llama-quantize prints them for a model of 16 layers with a tied head."""
    shape = REAL_SHAPES["llama3.2-1b"]
    kinds = {name: kind_of(shape, name, sizes) for name, sizes in tensor_sizes(shape)}
    assert kinds["token_embd.weight"] == "Q6_K"
    more = [i for i in range(16) if kinds[f"blk.{i}.ffn_down.weight"] == "Q6_K"]
    assert more == [0, 1, 4, 7, 10, 13, 14, 15]
    assert [i for i in range(16) if kinds[f"blk.{i}.attn_v.weight"] == "Q6_K"] == more
    assert {kinds["blk.3.attn_q.weight"], kinds["blk.3.ffn_up.weight"]} == {"Q4_K"}
    assert {kinds["output_norm.weight"], kinds["rope_freqs.weight"]} == {"F32"}
    gemma = REAL_SHAPES["gemma3-1b"]
    odd = {name: kind_of(gemma, name, sizes) for name, sizes in tensor_sizes(gemma)}
    assert odd["token_embd.weight"] == odd["blk.0.attn_v.weight"] == "Q8_0"
    assert (odd["blk.0.ffn_up.weight"], odd["blk.0.attn_output.weight"]) == ("Q5_0", "Q4_K")
    olmoe = REAL_SHAPES["olmoe-1b-7b"]
    of_experts = {name: kind_of(olmoe, name, sizes) for name, sizes in tensor_sizes(olmoe)}
    assert of_experts["blk.0.ffn_gate_inp.weight"] == "F32"
    assert (of_experts["output.weight"], of_experts["token_embd.weight"]) == ("Q6_K", "Q4_K")


def test_rows_of_real_shapes() -> None:
    name = "qwen3-0.6b"
    results = Results(facts={f"sizes {name}": {"weights": 10**9, "kv_per_token": 0}})
    for side, speed in ((OURS, 18.0), (LLAMA, 10.0), ("ik_llama.cpp", 12.0)):
        results.add(name, "decode", side, speed)
        results.add(name, "prefill 512", side, 1 / speed)
    results.add(name, "decode, limits", "bandwidth", 20.0)
    decode, prefill, share = table(results)
    assert decode.reached is True and "(ik_llama.cpp)" in decode.target
    assert prefill.reached is False and "(llama.cpp)" in prefill.target
    assert share.reached is False and share.measured.startswith("90% (90% to 90%) of 20")
