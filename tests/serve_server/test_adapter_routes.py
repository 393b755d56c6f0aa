"""LoRA adapters over HTTP: named as models, loaded and dropped while it serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from adapter_files import random_pairs, write_lora_gguf
from kept_libraries import libraries_are_kept
from server_harness import Running, running

from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.server.limits.settings import ServerSettings
from mlc_llm.serve.server.pool.openers import EngineOpener
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

SHAPE = TinyShape()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapters")
    write_tiny_model(path / "tiny.gguf")
    for seed in (1, 2):
        write_lora_gguf(path / f"{seed}.gguf", random_pairs(SHAPE, seed), SHAPE)
    return path


@pytest.fixture(scope="module")
def adapted(folder: Path) -> Iterator[Running]:
    """A server with debug routes, whose model has the adapter `one`."""
    config = EngineConfig(
        mode="server", kernels="reference", max_num_sequence=4, max_total_sequence_length=1024,
        prefill_chunk_size=64, adapters={"one": str(folder / "1.gguf")}, max_adapters=2,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, libraries_are_kept():
        patch.setenv("MLC_LLM_HOME", str(folder / "cache"))
        settings = ServerSettings(port=0, debug=True)
        opener = EngineOpener("cpu", config)
        with running(settings, (f"base={folder / 'tiny.gguf'}",), opener) as server:
            yield server


def answer(server: Running, model: str, path: str = "/v1/completions", **more: Any) -> Any:
    fields = {"prompt": "Hello", "max_tokens": 12, "temperature": 0, "seed": 1, "model": model}
    reply = server.call("POST", path, {**fields, **more})
    return reply.json if reply.status == 200 else reply.error


def text(server: Running, model: str) -> str:
    found = answer(server, model)
    assert found["model"] == model
    said: str = found["choices"][0]["text"]
    return said


def names(server: Running) -> list[str]:
    return [one["id"] for one in server.call("GET", "/v1/models").json["data"]]


def change(server: Running, what: str, **fields: Any) -> Any:
    reply = server.call("POST", f"/adapters/{what}", fields)
    return reply.json if reply.status == 200 else reply.error


def test_an_adapter_is_a_model_of_its_own_name(adapted: Running, folder: Path) -> None:
    assert names(adapted) == ["base", "one"]
    entry = adapted.call("GET", "/v1/models/one").json
    assert (entry["id"], entry["root"], entry["state"]) == ("one", "base", "ready")
    plain, first = text(adapted, "base"), text(adapted, "one")
    assert plain != first
    chat = adapted.chat("Hi", model="one", max_tokens=8, temperature=0).json
    other = adapted.chat("Hi", model="base", max_tokens=8, temperature=0).json
    assert (chat["model"], other["model"]) == ("one", "base")
    assert chat["choices"][0]["message"] != other["choices"][0]["message"]
    stream = adapted.chat("Hi", model="one", max_tokens=8, temperature=0, stream=True).events
    said = "".join(one["choices"][0]["delta"].get("content") or "" for one in stream)
    assert said == chat["choices"][0]["message"]["content"]
    # loaded and dropped
    loaded = change(adapted, "load", name="two", source=str(folder / "2.gguf"))
    assert loaded["id"] == "two" and names(adapted) == ["base", "one", "two"]
    assert len({plain, first, text(adapted, "two")}) == 3
    assert change(adapted, "drop", name="two")["id"] == "base"
    assert names(adapted) == ["base", "one"]
    gone = answer(adapted, "two")
    assert gone["code"] == "model_not_found" and "there is: base, one" in gone["message"]
    assert (text(adapted, "base"), text(adapted, "one")) == (plain, first)


@pytest.mark.parametrize(
    ("what", "fields", "said"),
    [
        ("load", {"name": "one", "source": "x"}, "a model or an adapter has this name"),
        ("load", {"name": "base", "source": "x"}, "a model or an adapter has this name"),
        ("load", {"name": "default", "source": "x"}, "a model or an adapter has this name"),
        ("load", {"name": "new", "source": "/none"}, "no such file or folder"),
        ("load", {"name": "new"}, "source"),
        ("load", {"source": "x"}, "name"),
        ("load", {"name": "new", "source": 1}, "source"),
        ("load", {"name": "new", "source": "x", "path": "y"}, "unknown field"),
        ("drop", {"name": "base"}, "there is no adapter 'base'"),
        ("drop", {"name": "none"}, "the model 'none' does not exist; there is: base, one"),
        ("drop", {}, "name"),
    ],
)
def test_what_is_refused(adapted: Running, what: str, fields: dict[str, Any], said: str) -> None:
    assert said in change(adapted, what, **fields)["message"]
    assert names(adapted) == ["base", "one"]


def test_only_admins_change_adapters(server: Running) -> None:
    for what in ("load", "drop"):
        assert change(server, what, name="a", source="b")["code"] == "not_found"
