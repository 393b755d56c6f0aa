"""`help` of the two configs: every field, its default, and ranges that are true."""

from __future__ import annotations

import pydoc
import re
from dataclasses import fields
from typing import Any

import pytest

from mlc_llm.errors import InvalidField
from mlc_llm.protocol import generation_rules
from mlc_llm.protocol.field_docs import FieldDoc, field_docs
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import config_fields, limits
from mlc_llm.serve.config import EngineConfig

RULES: dict[Any, Any] = {
    GenerationConfig: generation_rules.RULES,
    EngineConfig: config_fields.RULES,
}
DOCS = [(cls, doc) for cls in RULES for doc in field_docs(cls)]
NUMBERS = [(cls, doc) for cls, doc in DOCS if doc.kind.startswith(("int", "float"))]
NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:e-[0-9]+)?"


def number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def test_help_shows_every_field() -> None:
    for cls in RULES:
        text = pydoc.plain(pydoc.render_doc(cls))
        for doc in field_docs(cls):
            assert f"{doc.name}: {doc.kind} = {doc.default}" in text
            assert all(line.strip() in text for line in doc.text.splitlines())
        assert "Raises" in text or "raises" in text, "its own words are there too"
    assert [doc.name for doc in field_docs(EngineConfig)] == [f.name for f in fields(EngineConfig)]
    assert {doc.name for doc in field_docs(GenerationConfig)} == set(generation_rules.RULES)


@pytest.mark.parametrize(("cls", "doc"), DOCS, ids=lambda one: getattr(one, "name", ""))
def test_every_field_says_what_it_is(cls: Any, doc: FieldDoc) -> None:
    assert len(doc.text) > 15 and doc.text.endswith(".")
    default = getattr(cls(), doc.name)
    assert doc.default == repr(default) or doc.name in ("response_format", "debug_config")


@pytest.mark.parametrize(("cls", "doc"), NUMBERS, ids=lambda one: getattr(one, "name", ""))
def test_the_ranges_are_those_of_the_checks(cls: Any, doc: FieldDoc) -> None:
    rule: Any = RULES[cls][doc.name]
    text = doc.text.replace("above 0", "1e-300")
    span = re.search(rf"({NUMBER}) to ({NUMBER})", text)
    least = re.search(rf"[Aa]t least ({NUMBER})", text)
    assert span or least, "it names a range"
    bounds = [number(one) for one in (span or least).groups()]  # type: ignore[union-attr]
    for bound in bounds:
        rule(doc.name, bound)
    beyond = [bounds[0] - 1, *(bound + 1 for bound in bounds[1:])]
    for value in beyond:
        with pytest.raises(InvalidField):
            rule(doc.name, value)


def test_the_modes_have_the_numbers_of_the_limits() -> None:
    (mode,) = [doc.text for doc in field_docs(EngineConfig) if doc.name == "mode"]
    words = " ".join(mode.split())
    assert f"local: {limits.LOCAL_MAX_NUM_SEQUENCE} answers" in words
    assert f"of {limits.LOCAL_MAX_TOTAL} tokens" in words
    assert f"server: {limits.SERVER_MAX_NUM_SEQUENCE} answers" in words
    utilization = next(d for d in field_docs(EngineConfig) if d.name == "gpu_memory_utilization")
    assert f"None is {limits.DEFAULT_UTILIZATION}" in utilization.text
    chunk = next(d for d in field_docs(EngineConfig) if d.name == "prefill_chunk_size")
    assert f"None is {limits.DEFAULT_PREFILL_CHUNK}" in chunk.text


def test_a_class_without_source_keeps_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_source(cls: Any) -> str:
        raise OSError("no source")

    monkeypatch.setattr("inspect.getsource", no_source)
    assert str(GenerationConfig.__doc__).startswith("Sampling and stopping of one request")
    assert "Fields" not in str(GenerationConfig.__doc__)
