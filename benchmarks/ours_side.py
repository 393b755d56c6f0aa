"""Our engine as a side of the comparison: a process of `ours_worker.py` with one model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from common import HERE
from ours import versions
from peers.base import LineWorker, Missing, run
from startup import first_byte

from mlc_llm.support.files import cache_root

PROMPT = "The sun rises in the east and sets in the west. In the evening one can"
"""16 tokens of the default model's tokenizer: the peers' cold starts have 16 too."""


class Ours:
    """Our engine. settings: environment variables of its processes, for example the kernels."""

    def __init__(self, threads: int, name: str = "ours", settings: Mapping[str, str] = {}) -> None:
        self.name = name
        self.environment = {**settings, "MLC_NUM_THREADS": str(threads)}

    def install(self) -> str:
        return " ".join(f"{package} {version}" for package, version in versions().items())

    def prepare(self, model: Path) -> None:
        """Compile and pack what is not in the cache, before the rounds."""
        with closing(self.open(model)) as session:
            session.wait()

    def open(self, model: Path) -> LineWorker:
        command = [sys.executable, HERE / "ours_worker.py", model]
        return LineWorker(command, self.environment)

    def cold_start(self, model: Path, home: Path | None = None) -> float:
        """Seconds of `mlc_llm generate` to the first byte of its answer. home: another cache."""
        home = home or cache_root()
        try:
            seconds, _ = first_byte(
                model, PROMPT, str(home), tokens=1, raw=True, more=self.environment
            )
        except SystemExit as failed:
            raise Missing(str(failed)) from None
        return seconds

    def logits(self, model: Path, pieces: Path, target: Path) -> None:
        settings = [f"{k}={v}" for k, v in self.environment.items()]
        script = [sys.executable, HERE / "divergence.py", model, "--write"]
        run(["env", *settings, *script, pieces, target])
