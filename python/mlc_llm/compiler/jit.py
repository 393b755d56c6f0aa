"""Model libraries and packed weights on demand, cached by everything that shapes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from mlc_llm.backends.base import Backend
from mlc_llm.backends.registry import choose_backend
from mlc_llm.compiler.keys import (
    digest,
    model_content,
    packed_folder,
    source_hash,
    weights_key,
    weights_purposes,
)
from mlc_llm.compiler.weights import count_parameters, pack_weights
from mlc_llm.errors import ModelFileError
from mlc_llm.library.metadata import INDEX_FILE, METADATA_FILE, VERSION
from mlc_llm.models.registry import read_gguf
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.support.cached import record_about
from mlc_llm.support.content import Content, FileState, content_of, known_content
from mlc_llm.support.files import cache_dir, file_lock, new_folder, publish
from mlc_llm.support.progress import Progress, progress
from mlc_llm.support.superseded import is_sound, lock_of, record_purposes, use

ShowProgress = Callable[[str, float | None], AbstractContextManager[Progress]]


class ModelFile(Protocol):
    """What is read of a GGUF file (`loader.gguf.GGUFFile`)."""

    @property
    def path(self) -> Path: ...

    @property
    def opened(self) -> Sequence[tuple[Path, os.stat_result]]: ...

    @property
    def metadata(self) -> Any: ...

    @property
    def tensors(self) -> Any: ...


@dataclass(frozen=True)
class Prepared:
    """A model ready for `runtime.model_runner.ModelRunner`."""

    plan: WeightPlan
    backend: Backend
    library: Path
    weights: Path


def prepare(
    model: ModelFile,
    kernels: str | None = None,
    *,
    vocab_size: int | None = None,
    fast: bool = False,
    windowed: bool = False,
    rebuild: bool = False,
    show: ShowProgress = progress,
) -> Prepared:
    """Finds library and weights in the cache, or makes them. `rebuild` replaces what is there.

    vocab_size: tokens of the model's tokenizer: rows of the output beyond these are never chosen,
    and take no probability away. None: all rows are tokens.

    fast: the library has every way to compute prompts faster. windowed: it is for a sliding
    window of the engine.

    Older builds for the same model are removed when they have not been used for a day.

    Two processes that want the same at once: the second waits for the first. Raises
    UnsupportedModel, ModelFileError, CacheError, CompileError, InvalidField.
    """
    backend = choose_backend(kernels)
    if fast:
        backend = backend.with_fast_tokens()
    plan = read_gguf(model.metadata, model.tensors)
    spec = replace(plan.spec, active_vocab=vocab_size)
    plan = replace(plan, spec=spec.with_sink_queries() if windowed else spec)
    backend.check(plan.spec)
    library = cache_dir("model_lib") / library_key(plan, backend)
    content = content_of_model(model)
    weights = packed_folder() / weights_key(content, backend)

    def build(folder: Path) -> None:
        from mlc_llm.compiler.build import build_library

        label = f"compiling {plan.spec.architecture} for {backend.name}"
        with show(label, None):
            build_library(plan.spec, backend, folder)
        record_about(folder, "library", model.path.name)

    def pack(folder: Path) -> None:
        with show("packing weights", count_parameters(plan)) as shown:
            pack_weights(plan, backend, model.tensors, folder, shown.advance)
        if content_of_model(model) != content:  # the weights would be found under a wrong name
            raise ModelFileError(f"{model.path} was changed while it was read; start again")
        record_about(folder, "packed weights", model.path.name)

    _make(library, METADATA_FILE, (library_purpose(plan, backend),), build, rebuild)
    _make(weights, INDEX_FILE, weights_purposes(content, model.path, backend), pack, rebuild)
    return Prepared(plan, backend, library, weights)


def packed_weights(model: ModelFile, kernels: str | None = None) -> Path | None:
    """The folder of a model's packed weights if they are in the cache, and finding that out takes
    milliseconds. Raises like `prepare`, and OSError."""
    found = [known_content(path) for path, _ in model.opened]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    content = _named(model, known)
    folder = packed_folder() / weights_key(content, choose_backend(kernels))
    return folder if is_sound(folder, INDEX_FILE) else None


def content_of_model(model: ModelFile) -> str:
    """Names what is in the opened files of a model. Raises ModelFileError if others have taken
    their places, or cannot be read any more."""
    try:
        return _named(model, [content_of(path) for path, _ in model.opened])
    except OSError as error:
        raise ModelFileError(f"{model.path}: cannot be read: {error.strerror}") from error


def _named(model: ModelFile, contents: Sequence[Content]) -> str:
    for (path, stat), content in zip(model.opened, contents, strict=True):
        if content.state != FileState.of(stat):
            raise ModelFileError(f"{path} was changed while it was opened; start again")
    return model_content(content.hash for content in contents)


def library_key(plan: WeightPlan, backend: Backend) -> str:
    """Name of the library's folder: a hash over shapes, formats, target, source and versions."""
    return digest(
        {
            "spec": _compiled_spec(plan),
            "backend": backend.library_identity(),
            "source": source_hash(),
            "tvm": version("apache-tvm"),
            "version": VERSION,
        }
    )


def library_purpose(plan: WeightPlan, backend: Backend) -> str:
    """What libraries have in common of which the newer replaces the older."""
    return digest({"spec": _compiled_spec(plan), "backend": backend.library_identity()})


def _compiled_spec(plan: WeightPlan) -> dict[str, Any]:
    """The model's shape without what is only known at run time."""
    spec = asdict(plan.spec)
    del spec["context_window"]
    spec["ropes"] = [rope.dim for rope in plan.spec.ropes]
    return spec


def _make(
    folder: Path,
    last_file: str,
    purposes: Sequence[str],
    work: Callable[[Path], None],
    rebuild: bool,
) -> None:
    """Fills `folder` unless it is there. It appears all at once, under a lock."""
    if rebuild or not is_sound(folder, last_file):
        with file_lock(lock_of(folder)):
            # Another process may have made it while this one waited.
            if rebuild or not is_sound(folder, last_file):
                with new_folder(folder.parent) as temporary:
                    work(temporary)
                    record_purposes(temporary, purposes)
                    publish(temporary, folder)
    use(folder)
