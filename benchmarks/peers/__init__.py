"""The engines that ours is compared with, each installed and built into a folder of its own."""

from __future__ import annotations

from pathlib import Path

from .base import Side
from .ik_llama import IkLlama
from .llama_cpp import LlamaCpp
from .openvino import OpenVINO
from .vllm import VLLM

KINDS: dict[str, type[LlamaCpp] | type[IkLlama] | type[OpenVINO] | type[VLLM]] = {
    one.name: one for one in (LlamaCpp, IkLlama, OpenVINO, VLLM)
}


def make_peer(name: str, folder: Path, threads: int) -> Side:
    """The peer of that name, which keeps all it needs in `folder`. Nothing is installed yet."""
    return KINDS[name](folder, threads)
