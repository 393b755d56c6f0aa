"""An engine with LoRA adapters: each answers as the merged model, and bad ones hurt nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from adapter_files import config_of, peft_tensors, random_pairs, write_lora_gguf, write_peft

from mlc_llm.conversion.convert import convert_weight
from mlc_llm.errors import InvalidField, UserError
from mlc_llm.model_files.adapters import merged, open_adapter
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import infer_limits, plan_memory
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.opening.memory import model_size
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.support.progress import no_progress
from mlc_llm.testing.tiny_model import TinyShape

PROMPTS = ["Hello", "What now", "and so on"]
CONFIG = {"temperature": 0.0, "max_tokens": 12}
SHAPE = TinyShape()


def engine_of(model: Path, **config: Any) -> SyncMLCEngine:
    limits = {"max_num_sequence": 4, "max_total_sequence_length": 512, "prefill_chunk_size": 64}
    return SyncMLCEngine(
        str(model), engine_config={"kernels": "reference", **limits, **config, "verbose": False}
    )


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("adapters")
    one = write_lora_gguf(folder / "one.gguf", random_pairs(SHAPE, 1), SHAPE)
    two = write_peft(folder / "two", peft_tensors(random_pairs(SHAPE, 2)), config_of())
    return {"one": str(one), "two": str(two)}


@pytest.fixture(scope="module")
def expected(
    tiny: Path, adapters: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """Texts of the merged models, and of the plain one."""
    found, folder = {}, tmp_path_factory.mktemp("merged")
    for name, source in {"": None, **adapters}.items():
        path = tiny
        if source is not None:
            path = folder / f"{name}.gguf"
            files = merged(GGUFModel.open(tiny), open_adapter(source))
            convert_weight(files, "f32", path, no_progress)
        found[name] = [one[0] for one in engine_of(path).generate(PROMPTS, CONFIG).texts]
    assert len({texts[0] for texts in found.values()}) == 3, "adapters that change nothing"
    return found


def texts_of(engine: SyncMLCEngine, adapter: str = "") -> list[str]:
    return [one[0] for one in engine.generate(PROMPTS, CONFIG, adapter=adapter).texts]


def test_adapters_answer_as_merged_models(
    tiny: Path, adapters: dict[str, str], expected: dict[str, list[str]], tmp_path: Path
) -> None:
    engine = engine_of(tiny, adapters=adapters, max_adapters=3)
    complete = engine.engine_config
    assert (complete.max_adapters, complete.max_adapter_rank) == (3, 4)
    for name in ("one", "", "two", "one"):
        assert texts_of(engine, name) == expected[name], name
    # loaded and dropped while it serves
    engine.load_adapter("three", adapters["one"])
    assert texts_of(engine, "three") == expected["one"]
    with pytest.raises(InvalidField, match="3 adapters are loaded or in use"):
        engine.load_adapter("four", adapters["one"])
    engine.drop_adapter("one")
    with pytest.raises(InvalidField, match="adapter = 'one' is not allowed: there is no such"):
        texts_of(engine, "one")
    engine.load_adapter("one", adapters["two"])
    assert texts_of(engine, "one") == expected["two"]
    _bad_adapters(engine, adapters, tmp_path)
    assert texts_of(engine, "two") == expected["two"]


def _bad_adapters(engine: SyncMLCEngine, adapters: dict[str, str], folder: Path) -> None:
    """They are refused by name, while a request runs."""
    engine.drop_adapter("one")
    wide = write_peft(folder / "w", peft_tensors(random_pairs(SHAPE, 3, 9)), config_of(r=9))
    other = TinyShape(hidden=32)
    wrong = write_lora_gguf(folder / "wrong.gguf", random_pairs(other), other)
    broken = folder / "broken.gguf"
    broken.write_bytes(Path(adapters["one"]).read_bytes()[:-50])
    for source, said in {
        str(wide): "has rank 9; the engine has room for max_adapter_rank = 4",
        str(wrong): "adapter 'bad': .*wrong.gguf: tensor .* has shape",
        str(broken): "adapter 'bad': .*broken.gguf",
        str(folder / "none"): "no such file or folder",
    }.items():
        with pytest.raises(UserError, match=said):
            engine.load_adapter("bad", source)


def test_a_bad_adapter_is_refused_when_the_engine_is_opened(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"adapter 'x': adapter .*none.*: no such file or folder"):
        engine_of(tiny, adapters={"x": str(tmp_path / "none")})


def test_an_engine_without_room_says_so(tiny: Path, adapters: dict[str, str]) -> None:
    engine = engine_of(tiny)
    with pytest.raises(InvalidField, match="opened without adapters and max_adapters"):
        engine.load_adapter("one", adapters["one"])
    with pytest.raises(InvalidField, match="there is no such adapter; there is: none"):
        texts_of(engine, "one")


def test_the_memory_of_adapters_is_planned(tiny: Path) -> None:
    pairs = random_pairs(SHAPE, rank=1).values()
    numbers = sum(pair.down.size + pair.up.size for pair in pairs)
    size = model_size(open_model(str(tiny)), "reference")
    assert size.adapter_bytes == 4 * numbers
    none = infer_limits(EngineConfig(), size)
    some = infer_limits(EngineConfig(max_adapters=3, max_adapter_rank=9), size)
    more = plan_memory(some, size, 2**30).total(16) - plan_memory(none, size, 2**30).total(16)
    assert more == 4 * 3 * 16 * numbers, "a rank is rounded up to a multiple of 8"
