"""Keeps torch out of our imports of TVM.

`tvm_ffi` and `tvm` import torch wherever it is installed. That takes seconds, we need nothing of
it, and they have no setting to turn it off. Where the import raises `ImportError`, they go on.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would take longer than all the rest
    from collections.abc import Callable
    from types import FrameType

IMPORTLIB = ("importlib", "_frozen_importlib")
TVM = ("tvm", "tvm_ffi")
US = ("mlc_llm",)


class WithoutTorch:
    """A finder of modules that finds nothing, and refuses torch to TVM while we import it.

    Every other import of torch goes on as before: the user's, in any thread at any time, and TVM's
    own where the user imports TVM or calls it. Where torch is imported already, Python asks no
    finder, so TVM gets it.
    """

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:
        """Raises `ModuleNotFoundError` for what it refuses."""
        if fullname == "torch" and _tvm_asks_for_us(sys._getframe(1)):
            raise ModuleNotFoundError("mlc_llm imports TVM without torch", name=fullname)


def install() -> None:
    """Put the finder before all others, once."""
    if WithoutTorch not in sys.meta_path:
        sys.meta_path.insert(0, WithoutTorch)


def _tvm_asks_for_us(importing: FrameType) -> bool:
    """TVM imports something, in this thread, while a module of ours imports TVM."""
    asks = _outward(importing, lambda frame: not _is_of(frame, IMPORTLIB))
    if asks is None or not _is_of(asks, TVM):
        return False
    loads = _outward(asks, lambda frame: _is_of(frame, TVM) and _is_loading(frame))
    return _outward(loads, lambda frame: _is_of(frame, US)) is not None


def _outward(frame: FrameType | None, wanted: Callable[[FrameType], bool]) -> FrameType | None:
    """The first of a frame and its callers that is wanted."""
    while frame is not None and not wanted(frame):
        frame = frame.f_back
    return frame


def _is_of(frame: FrameType, packages: tuple[str, ...]) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in packages


def _is_loading(frame: FrameType) -> bool:
    """The frame runs the body of a module."""
    return frame.f_code.co_name == "<module>"
