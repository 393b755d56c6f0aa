"""Every example runs, and the README shows the first one as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
COMPILES = ("adapters", "draft_head", "images", "long_context")
"""Examples that compile a library of their own, for 5 to 10 seconds; `--slow` runs them."""

PRINTS = {
    "async_chats": r"\A(answer: .*\n){20}begins: .{20,}",
    "chat": r"29 prompt tokens, 0 of them cached(.*\n)*.*prompt tokens, [1-9]\d* of them cached",
    "draft_head": r"(.*\n)+same text: True\n",
    "embeddings": r"3 vectors of 576 numbers\n0\.\d{3} A kitten .*\n-?0\.\d{3} Interest .*\n",
    "encoder": r"\Amean: 3 vectors of 64 numbers\n.* the same: True\n(0\.\d{3} .+\n){3}\Z",
    "engine": r"Paris(.*\n)+'The sun rises in the .*\n'Water boils at .*\n",
    "extraction": r"({'name': '.*', 'city': '.*', 'age': \d+}\n){3}",
    "images": r"a chat: \d+ prompt tokens, answer .*\ntexts and images in any order: .*\n",
    "long_context": r"512 tokens, with the scaling 2048\na prompt of 1920 tokens, answer '.+'\n",
    "prefix": r" 0 of \d+ prompt.*\n.* [1-9]\d* of \d+ prompt.*\n1 of 2 .*\n.*at token [1-9]",
    "recurrent": r"(.*two answers.*\n){3}1 of 3 prompts began with a state that was kept\n",
    "speculation": r"plain: \d+ .*\nwith draft tokens: \d+ .*\nsame text: True\n",
    "tools": r"get_weather\({'city': '.*', 'unit': '(celsius|fahrenheit)'}\) -> (.*\n)+answer: ",
    "users": r"\A(user-\d+ \((stop|length)\) .*\n){20}\Z",
}
"""What an example has to show, where any words would not do."""


@pytest.mark.model
@pytest.mark.usefixtures("default_model")
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(one, id=one.stem, marks=[pytest.mark.slow] * (one.stem in COMPILES))
        for one in EXAMPLES
    ],
)
def test_example_runs(example: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) >= 3
    assert re.search(PRINTS.get(example.stem, ""), done.stdout), done.stdout


def test_the_readme_shows_the_first_example() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    code = (ROOT / "examples" / "hello.py").read_text().split('"""')[2].strip()
    assert shown[0].strip() == code
