"""The npm packages `openai` and `ai` against the server with the default model.

The scripts in `node/` write what they got as JSON; `scripts/test --contract` installs the packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from contract_server import KEY

pytestmark = [pytest.mark.model, pytest.mark.slow]
HERE = Path(__file__).parent
PLACE = HERE.parents[1] / ".venv-contract" / "node"
HANGS_AFTER_S = 600


def said_by(script: str, address: str) -> Any:
    """What the script writes: an object of its answers. Its imports are those of `PLACE`."""
    node = shutil.which("node")
    if node is None or not (PLACE / "node_modules").is_dir():
        pytest.skip(
            "needs node and npm, and `scripts/test --contract`, which installs the packages"
        )
    done = subprocess.run(
        [node, "--input-type=module", "-"],
        input=(HERE / "node" / script).read_text(encoding="utf-8"),
        env={**os.environ, "ADDRESS": address, "KEY": KEY},
        cwd=PLACE, capture_output=True, text=True, timeout=HANGS_AFTER_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def own(address: str) -> Any:
    return said_by("openai.mjs", address)


@pytest.fixture(scope="module")
def sdk(address: str) -> Any:
    return said_by("ai.mjs", address)


def test_answers_of_openai(own: Any) -> None:
    whole = own["whole"]["choices"][0]
    assert "Paris" in whole["message"]["content"] and whole["finish_reason"] == "stop"
    assert own["streamed"] == whole["message"]["content"]
    assert own["assembled"]["choices"][0]["message"]["content"] == whole["message"]["content"]
    used = own["whole"]["usage"]["total_tokens"]
    assert own["assembled"]["usage"]["total_tokens"] == used > 10
    assert own["response"] == whole["message"]["content"] == own["responseStreamed"]


def test_forms_and_calls_of_openai(own: Any) -> None:
    assert set(own["parsed"]) == {"name", "country"}
    (call,) = own["calls"]
    assert call["function"]["name"] == "get_weather"
    assert set(call["function"]["parsed_arguments"]) == {"city"}
    assert own["ran"]["cities"] == [call["function"]["parsed_arguments"]["city"]]
    assert own["ran"]["roles"][:2] == ["assistant", "tool"]


def test_embeddings_of_openai(own: Any) -> None:
    base64, floats = own["embeddings"]
    assert len(base64) == len(floats) > 100
    assert all(abs(a - b) < 1e-6 for a, b in zip(base64, floats, strict=True))


def test_errors_of_openai(own: Any) -> None:
    assert own["errors"] == {
        "missing": ["NotFoundError", 404, "model_not_found"],
        "locked": ["AuthenticationError", 401, "invalid_api_key"],
        "aborted": "APIUserAbortError",
    }
    assert own["afterwards"]


@pytest.mark.parametrize("provider", ["compatible", "chat", "responses"])
def test_the_ai_package(sdk: Any, provider: str) -> None:
    found = sdk[provider]
    assert "Paris" in found["text"] and found["finish"] == "stop"
    assert found["streamed"] == found["text"]
    assert found["usage"]["inputTokens"] > 10 and found["usage"]["outputTokens"] > 0
    assert found["streamedUsage"] == found["usage"]
    assert set(found["object"]) == {"name", "country"}
    (call,) = found["calls"]
    assert call["toolName"] == "get_weather" and set(call["input"]) == {"city"}
    assert found["streamedCalls"] == [[call["toolName"], call["input"]]]
    assert found["error"] == 404


def test_embeddings_of_the_ai_package(sdk: Any) -> None:
    assert [len(one) > 100 for one in sdk["embeddings"]] == [True, True]
