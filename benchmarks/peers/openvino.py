"""OpenVINO GenAI, from the package index; it reads GGUF files itself."""

from __future__ import annotations

from pathlib import Path

from .base import LIMIT, WORKERS, LineWorker, python_environment, run, timed

RELEASE = "2026.4.1.0"


class OpenVINO:
    """Its continuous-batching pipeline, one step at a time, in a process that holds the model."""

    name = "OpenVINO"

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder, self.threads = folder, threads
        self._python = folder / "openvino" / "venv" / "bin" / "python"

    def install(self) -> str:
        requirement = f"openvino-genai=={RELEASE}"
        self._python = python_environment(self.folder / "openvino" / "venv", requirement)
        return f"{requirement}, INFERENCE_NUM_THREADS={self.threads}"

    def open(self, model: Path) -> LineWorker:
        return LineWorker([*self._command(model), "serve"], {})

    def cold_start(self, model: Path) -> float:
        """The conversion of the file is part of every start."""
        return timed([*self._command(model), "once"])

    def logits(self, model: Path, pieces: Path, target: Path) -> None:
        worker = WORKERS / "openvino_logits.py"
        run([self._python, worker, model, pieces, target, self.threads], limit=LIMIT)

    def _command(self, model: Path) -> list[str | Path]:
        return [self._python, WORKERS / "openvino_worker.py", model, str(self.threads)]
