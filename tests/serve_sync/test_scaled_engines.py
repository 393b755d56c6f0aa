"""`rope_scaling` of an engine: the answers of a file that says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

LINEAR = {"rope_type": "linear", "factor": 2.0}
PROMPT = "a much longer prompt " * 6
GREEDY = GenerationConfig(temperature=0, max_tokens=40)


def text_of(model: Path, **config: object) -> str:
    engine = SyncMLCEngine(str(model), "cpu", engine_config=config)
    return engine.generate(PROMPT, GREEDY)[0][0][0]


def test_the_answer_is_that_of_a_file_that_says_it(tiny: Path, tmp_path: Path) -> None:
    """Packed weights of both kinds lie beside each other."""
    said = tmp_path / "said.gguf"
    write_tiny_model(said, shape=TinyShape(rope_linear=2.0))
    plain, scaled = text_of(tiny), text_of(tiny, rope_scaling=LINEAR)
    assert scaled == text_of(said) != plain
    assert text_of(tiny) == plain


def test_the_context_grows_by_the_factor(tiny: Path) -> None:
    before = open_model(str(tiny)).context_window
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert open_model(str(tiny), rope_scaling=yarn).context_window == 4 * before
    engine = SyncMLCEngine(str(tiny), "cpu", engine_config={"rope_scaling": yarn})
    assert engine.engine_config.max_single_sequence_length == 4 * before


@pytest.mark.parametrize("wrong", [[1], "yarn", {"rope_type": "ntk", "factor": 2.0}])
def test_wrong_values_are_named(tiny: Path, wrong: object) -> None:
    with pytest.raises(InvalidField, match="rope_scaling"):
        SyncMLCEngine(str(tiny), "cpu", engine_config={"rope_scaling": wrong})
