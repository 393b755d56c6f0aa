"""`convert_weight`, `gen_config` and `compile`: files, and errors of one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_files import random_pairs, write_lora_gguf
from conversion_tools import SHAPE

from mlc_llm.cli import generate
from mlc_llm.cli.__main__ import main
from mlc_llm.cli.compile import is_windowed
from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import UserError
from mlc_llm.library.metadata import METADATA_FILE
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.testing.tiny_model import write_tiny_model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "home"))
    return str(write_tiny_model(tmp_path / "tiny.gguf", kinds={"": "F16"}, shape=SHAPE))


def line(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said, in one line."""
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_a_model_is_converted(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "out")
    assert main(["convert_weight", model, "--quantization", "q4f16_1", "-o", output]) == 0
    assert f"[{output}: 4.53 bits a weight]" in capsys.readouterr().err
    assert (tmp_path / "out" / "params_shard_0.bin").is_file()
    words = ["convert_weight", output, "--quantization", "q0f32", "-o", f"{output}2", "--quiet"]
    assert main(words) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quantization", "q4", "-o", "new"], "quantization = 'q4' is not allowed: one of q0f16"),
        (["--quantization", "q4_k", "-o", "new"], "rows of 64 values are not whole q4_k blocks"),
        (["--quantization", "q4_0", "-o", "tiny.gguf"], "tiny.gguf is there already"),
        (
            ["--quantization", "q4_0", "-o", "new", "--conv-template", "none"],
            "conv_template = 'none' is not allowed",
        ),
    ],
)
def test_mistakes_are_named(
    model: str, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = words.index("-o") + 1
    words = [*words[:output], str(tmp_path / words[output]), *words[output + 1 :]]
    assert main(["convert_weight", model, *words]) == 2
    assert said in line(capsys)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["convert_weight", "--quantization", "q4f16_1", "-o", "tiny.gguf/new"],
        ["convert_weight", "--quantization", "q8_0", "-o", "tiny.gguf/deeper/new.gguf"],
        ["convert_weight", "--quantization", "q4f16_1", "-o", "nowhere/new"],
        ["gen_config", "--quantization", "q4f16_1", "-o", "tiny.gguf/new"],
        ["compile", "-o", "tiny.gguf/new"],
    ],
)
def test_an_output_below_a_file_is_named(
    model: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nowhere").symlink_to("no such folder")
    above = tmp_path / words[-1].split("/")[0]
    assert main([words[0], model, *words[1:-1], str(tmp_path / words[-1])]) == 2
    assert f"cannot be made: {above} is no folder" in line(capsys)


def test_adapters_are_merged(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = write_lora_gguf(tmp_path / "lora.gguf", random_pairs(SHAPE), SHAPE)
    words = ["convert_weight", model, "--quantization", "f32", "-o", str(tmp_path / "new.gguf")]
    assert main([*words, "--lora", str(tmp_path / "none")]) == 2
    assert "none': no such file or folder; give a folder with adapter_config.json" in line(capsys)
    assert main([*words, "--lora", str(adapter), "--lora", str(adapter), "--quiet"]) == 0
    old, new = GGUFFile.open(model).tensors, GGUFFile.open(tmp_path / "new.gguf").tensors
    name = "blk.0.ffn_up.weight"
    assert not np.allclose(new[name].data.view("<f4"), old[name].data.view("<f2"), atol=0.1)


def test_a_config_is_written_and_changed(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    words = ["gen_config", model, "--quantization", "q4f16_1", "-o", str(output), "--quiet"]
    assert main([*words, "--context-window-size", "128"]) == 0
    first = json.loads((output / "mlc-chat-config.json").read_text())
    assert first["context_window_size"] == first["model_config"]["context_window_size"] == 128
    (output / "mine").write_text("mine")
    assert main([*words, "--conv-template", "phi-3"]) == 0
    second = json.loads((output / "mlc-chat-config.json").read_text())
    assert (second["context_window_size"], second["conv_template"]["name"]) == (512, "phi-3")
    names = {path.name for path in output.iterdir()}
    assert names == {"mlc-chat-config.json", "tokenizer.json", "tokenizer_config.json", "mine"}
    assert capsys.readouterr().err == ""
    assert main([*words, "--prefill-chunk-size", "-2"]) == 2
    assert "prefill_chunk_size = -2 is not allowed" in line(capsys)
    assert main(["gen_config", model, "--quantization", "q4_0", "-o", str(output)]) == 2
    assert "one of q0f16" in line(capsys)


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "mlc-chat-config.json").read_text())
    return found


def without_jinja(folder: Path) -> None:
    """Remove the model's own chat template."""
    path = folder / "tokenizer_config.json"
    stated = json.loads(path.read_text())
    del stated["chat_template"]
    path.write_text(json.dumps(stated))


def test_a_folder_keeps_its_settings(model: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    words = ["--quantization", "q4f16_1", "--quiet", "-o"]
    assert main(["convert_weight", model, "--conv-template", "llama-2", *words, str(first)]) == 0
    without_jinja(first)
    stated = config_of(first)
    stated |= {"temperature": 0.3, "top_p": 0.5, "context_window_size": 300, "pad_token_id": 7}
    stated |= {"sliding_window_size": 128, "attention_sink_size": 4, "mine": [1]}
    stated["model_config"]["max_batch_size"] = 3
    (first / "mlc-chat-config.json").write_text(json.dumps(stated))
    sizes = {name: stated[name] for name in ("context_window_size", "sliding_window_size")}
    stated["model_config"] |= {**sizes, "attention_sink_size": 4}
    words[1] = "q0f16"
    assert main(["convert_weight", str(first), *words, str(second)]) == 0
    assert config_of(second) == {**stated, "quantization": "q0f16"}
    words[1] = "q4f16_1"
    again = ["--prefill-chunk-size", "256"]
    assert main(["gen_config", str(first), *again, *words, str(first)]) == 0
    stated["model_config"]["prefill_chunk_size"] = stated["prefill_chunk_size"] = 256
    assert config_of(first) == stated


def test_a_named_template_comes_before_the_models_own(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "out")
    words = ["--quantization", "q4f16_1", "--quiet", "-o", output]
    assert main(["convert_weight", model, "--conv-template", "llama-2", *words]) == 0
    for template, used in (
        ("phi-3", "phi-3"), (None, "phi-3"), ("auto", None), (None, None)
    ):  # fmt: skip
        named = [] if template is None else ["--conv-template", template]
        assert main(["gen_config", output, *named, *words]) == 0
        bundle = open_model(output)
        assert getattr(bundle.chat_template, "name", None) == used
        assert ("stop_strs" in bundle.defaults.given) == (used is not None)
    assert isinstance(bundle.chat_template, ChatTemplate)
    words = ["convert_weight", model, "--quantization", "f16", "-o", str(tmp_path / "new.gguf")]
    assert main([*words, "--conv-template", "phi-3"]) == 2
    assert "keeps the model's own chat template; leave --conv-template phi-3 out" in line(capsys)
    assert main([*words, "--conv-template", "auto", "--quiet"]) == 0


def test_auto_takes_the_folders_template_where_the_model_has_none(
    model: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    words = ["--quantization", "q4f16_1", "--quiet", "-o", str(output), "--conv-template"]
    assert main(["convert_weight", model, *words, "llama-2"]) == 0
    without_jinja(output)
    assert main(["gen_config", str(output), *words, "auto"]) == 0
    assert config_of(output)["conv_template"]["name"] == "llama-2"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "aarch64-linux-gnu", "--kernels", "vnni"], "vnni kernels are for"),
        (["--kernels", "fast"], "kernels = 'fast' is not allowed: use one of amx, vnni"),
        (["--device", "rocm"], "device = 'rocm' is not allowed: one of auto, cpu, cuda"),
        (
            ["--device", "cuda", "--arch", "sm_75"],
            "arch = 'sm_75' is not allowed: use one of sm_80",
        ),
        (["--arch", "sm_80"], "arch = 'sm_80' is not allowed: it is for device 'cuda' alone"),
        (["--device", "cuda", "--kernels", "avx2"], "kernels = 'avx2' is not allowed: device cuda"),
        (["--device", "cuda", "--arch", "sm_80", "--host", "x86_64-linux-gnu"], "leave it out"),
        (["--overrides", "max_batch_size=4"], "it is decided when the model is opened"),
    ],
)
def test_a_wrong_target_is_named(
    model: str, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", model, "-o", str(tmp_path / "new"), "--quiet", *words]) == 2
    assert said in line(capsys)
    assert not (tmp_path / "new").exists()


def test_overrides_that_ask_for_a_window() -> None:
    assert not is_windowed("")
    assert is_windowed("sliding_window_size=512; ")
    assert not is_windowed("sliding_window_size=512;sliding_window_size=-1")
    for wrong in ("sliding_window_size=0", "sliding_window_size=x", "size=3"):
        with pytest.raises(UserError):
            is_windowed(wrong)


@pytest.mark.slow
def test_a_library_is_compiled_and_used(
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generate, "is_piped", lambda: False)
    library = str(tmp_path / "lib")
    same = ["--quantization", "q4f16_1", "--quiet"]
    assert main(["compile", model, "--kernels", "portable", "-o", library, *same]) == 0
    stated = json.loads((tmp_path / "lib" / METADATA_FILE).read_text())
    assert (stated["backend"], stated["architecture"]) == ("portable", "llama")
    words = ["--raw", "hello", "--max-tokens", "8", "--temperature", "0", "--json", *same]
    assert main(["generate", "--model", model, "--model-lib", library, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["usage"]["completion_tokens"] == 8
    assert main(["convert_weight", model, "-o", str(tmp_path / "out"), *same]) == 0
    other = ["generate", "--model", str(tmp_path / "out"), "--model-lib", library, *words[:-3]]
    assert main([*other, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == found["text"]


@pytest.mark.slow
def test_a_library_for_another_machine(model: str, tmp_path: Path) -> None:
    library = tmp_path / "lib"
    words = ["--host", "aarch64-linux-gnu", "--kernels", "i8mm", "-o", str(library), "--quiet"]
    assert main(["compile", model, *words]) == 0
    for one in library.glob("*.o"):
        assert one.read_bytes()[18:20] == b"\xb7\0", "ELF's number of AArch64"
