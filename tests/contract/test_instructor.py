"""Instructor's patched client against the server with the default model."""

from __future__ import annotations

import pytest
from contract_server import KEY
from pydantic import BaseModel, Field

instructor = pytest.importorskip("instructor", reason="needs `pip install instructor`")
openai = pytest.importorskip("openai")

pytestmark = [pytest.mark.model, pytest.mark.slow]
PARIS = 'Paris is in France. Answer with {"name": "Paris", "country": "France"}.'
"""In the mode JSON the server holds the answer to no schema: the small model needs the form."""


class City(BaseModel):
    name: str = Field(max_length=20)
    country: str = Field(max_length=20)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON", "JSON_SCHEMA"])
def test_models_of_answers(address: str, mode: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as plain:
        client = instructor.from_openai(plain, mode=instructor.Mode[mode])
        found = client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": PARIS}],
            response_model=City,
            temperature=0,
            max_tokens=80,
            max_retries=0,
        )
    assert isinstance(found, City)
