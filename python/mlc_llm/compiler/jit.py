"""Finds model libraries and packed weights in the cache, or makes them.

Their names in the cache are hashes of everything that shapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mlc_llm.backends.registry import choose_backend
from mlc_llm.compiler.keys import (
    digest,
    model_content,
    packed_folder,
    source_hash,
    weights_key,
    weights_purposes,
)
from mlc_llm.errors import ModelFileError
from mlc_llm.library.metadata import INDEX_FILE, METADATA_FILE, VERSION
from mlc_llm.library.page_format import KVCacheDtype
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.models.image_spec import Sight
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.precision import Precision
from mlc_llm.record import record
from mlc_llm.support.cached import record_about
from mlc_llm.support.content import Content, FileState, content_of, known_content
from mlc_llm.support.distributions import version
from mlc_llm.support.file_locks import file_lock
from mlc_llm.support.files import cache_dir, check_room, new_folder, publish
from mlc_llm.support.progress import Progress, progress
from mlc_llm.support.superseded import is_sound, lock_of, record_purposes, use

if TYPE_CHECKING:
    from mlc_llm.backends.base import Backend

MOST_LIBRARY_BYTES = 16 << 20
"""More than any library has: usual ones have 1 to 5 MB."""

ShowProgress = Callable[[str, float | None], AbstractContextManager[Progress]]


@record()
class Prepared:
    """A model ready for `runtime.model_runner.ModelRunner`."""

    plan: WeightPlan
    backend: Backend
    library: Path
    weights: Path


def prepare(
    model: ModelFiles,
    kernels: str | None = None,
    *,
    vocab_size: int | None = None,
    precision: Precision = "exact",
    windowed: bool = False,
    adapted: bool = False,
    kv_cache: KVCacheDtype = "auto",
    sight: Sight | None = None,
    rebuild: bool = False,
    show: ShowProgress = progress,
) -> Prepared:
    """Find library and weights in the cache, or make them.

    vocab_size: tokens of the model's tokenizer. Rows of the output beyond them are never chosen,
    and take no probability away. None: all rows are tokens.
    precision: what the library is for. One for `exact` may be able to compute prompts faster too.
    windowed: the library is for a sliding window of the engine.
    adapted: it is for LoRA adapters.
    kv_cache: how its KV pages keep keys and values.
    sight: it is for images; what a token of one sees of it.
    rebuild: replace what is in the cache.

    Older builds for the same model are removed if they have not been used for a day. If two
    processes want the same at once, the second waits for the first.

    Raises UnsupportedModel, ModelFileError, CacheError, CompileError, InvalidField.
    """
    backend = choose_backend(kernels).with_precision(precision).with_kv_cache(kv_cache)
    plan = _plan(model, vocab_size, windowed)
    plan = plan.with_adapters() if adapted else plan
    plan = replace(plan, spec=replace(plan.spec, sight=sight))
    backend.check(plan.spec)
    content = content_of_model(model)
    work = _Work(model, plan, backend, show)
    names = library_names(plan, backend)
    library = _libraries() / names.key
    _make(library, METADATA_FILE, (names.purpose,), work.build, rebuild)
    return Prepared(plan, backend, library, _weights(work, content, rebuild))


def prepare_weights(model: ModelFiles, kernels: str | None = None) -> Path:
    """The packed weights alone, for a library that is there already. As `prepare`."""
    backend, plan = choose_backend(kernels), model.plan()
    backend.check(plan.spec)
    return _weights(_Work(model, plan, backend, progress), content_of_model(model), rebuild=False)


def _weights(work: _Work, content: str, rebuild: bool) -> Path:
    model, backend = work.model, work.backend
    folder = packed_folder() / weights_key(content, backend)
    purposes = weights_purposes(content, model.path, backend, model.changes)
    _make(folder, INDEX_FILE, purposes, partial(work.pack, content), rebuild)
    return folder


def _libraries() -> Path:
    """The folder of all libraries in the cache."""
    return cache_dir("model_lib")


def compile_library(
    model: ModelFiles,
    backend: Backend,
    folder: Path,
    *,
    vocab_size: int | None = None,
    windowed: bool = False,
    triple: str | None = None,
) -> None:
    """Compile a model's library into a folder, which exists. triple: an LLVM triple of another
    system. The other arguments are those of `prepare`. Raises UnsupportedModel, ModelFileError,
    InvalidField, CompileError."""
    plan = _plan(model, vocab_size, windowed)
    backend.check(plan.spec)
    _build(plan, backend, folder, progress, triple=triple)


def _plan(model: ModelFiles, vocab_size: int | None, windowed: bool) -> WeightPlan:
    plan = model.plan()
    spec = replace(plan.spec, active_vocab=vocab_size)
    return replace(plan, spec=spec.with_sink_queries() if windowed else spec)


def _build(
    plan: WeightPlan,
    backend: Backend,
    folder: Path,
    show: ShowProgress,
    *,
    triple: str | None = None,
    libraries: Path | None = None,
) -> None:
    from mlc_llm.compiler.build import build_library

    with show(f"compiling {plan.spec.architecture} for {backend.name}", None):
        build_library(plan.spec, backend, folder, triple=triple, libraries=libraries)


@record()
class _Work:
    """What is done when the cache has no library or no weights."""

    model: ModelFiles
    plan: WeightPlan
    backend: Backend
    show: ShowProgress

    def build(self, folder: Path) -> None:
        """Compile the library into a folder. Raises CacheError if there may be no room: on a full
        disk LLVM would end the process."""
        check_room(folder.parent, MOST_LIBRARY_BYTES, "compile a library")
        _build(self.plan, self.backend, folder, self.show, libraries=_libraries())
        record_about(folder, "library", _name(self.model))

    def pack(self, content: str, folder: Path) -> None:
        """Pack the weights of a model that had this content into a folder. Raises ModelFileError if
        the model has another one at the end: the weights would be found under a wrong name."""
        from mlc_llm.compiler.weights import count_parameters, pack_weights

        self.model.check_sums()
        with self.show("packing weights", count_parameters(self.plan)) as shown:
            pack_weights(self.plan, self.backend, self.model.tensors, folder, shown.advance)
        if content_of_model(self.model) != content:
            raise ModelFileError(f"{self.model.path} was changed while it was read; start again")
        record_about(folder, "packed weights", _name(self.model))


def packed_weights(model: ModelFiles, kernels: str | None = None) -> Path | None:
    """The folder of a model's packed weights in the cache.

    None if they are not there, or if finding that out would take more than milliseconds. Raises
    what `prepare` raises, and OSError.
    """
    found = [known_content(path) for path, _ in model.opened]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    content = _named(model, known)
    folder = packed_folder() / weights_key(content, choose_backend(kernels))
    return folder if is_sound(folder, INDEX_FILE) else None


def content_of_model(model: ModelFiles) -> str:
    """A name for what is in the opened files of a model.

    Raises ModelFileError if other files have taken their places, or if they cannot be read.
    """
    try:
        return _named(model, [content_of(path, _name(model)) for path, _ in model.opened])
    except OSError as error:
        raise ModelFileError(f"{model.path}: cannot be read: {error.strerror}") from error


def _name(model: ModelFiles) -> str:
    """What the cache calls the model: the name of its file or folder, also for `.`."""
    return model.path.absolute().name


def _named(model: ModelFiles, contents: Sequence[Content]) -> str:
    for (path, stat), content in zip(model.opened, contents, strict=True):
        if content.state != FileState.of(stat):
            raise ModelFileError(f"{path} was changed while it was opened; start again")
    return model_content((content.hash for content in contents), model.changes)


class LibraryNames(NamedTuple):
    """Hashes of all that shapes a library."""

    key: str
    """The name of its folder: of shapes, formats, target, source and versions."""
    purpose: str
    """The same for libraries of which a newer one replaces an older one."""


def library_names(plan: WeightPlan, backend: Backend) -> LibraryNames:
    """What the library of a model and a backend is called."""
    shaped = {"spec": _compiled_spec(plan), "backend": backend.library_identity()}
    made_by = {"source": source_hash(), "tvm": version("apache-tvm"), "version": VERSION}
    return LibraryNames(digest(shaped | made_by), digest(shaped))


def _compiled_spec(plan: WeightPlan) -> dict[str, object]:
    """The model's shape without what is only known at run time."""
    spec = asdict(replace(plan.spec, layers=()))
    layers = {one: asdict(one) for one in {*plan.spec.layers}}  # most are equal, and it takes long
    spec["layers"] = [layers[one] for one in plan.spec.layers]
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
    """Fill `folder` unless it is there. It appears all at once, under a lock."""
    if rebuild or not is_sound(folder, last_file):
        with file_lock(lock_of(folder)):
            # Another process may have made it while this one waited.
            if rebuild or not is_sound(folder, last_file):
                with new_folder(folder.parent) as temporary:
                    work(temporary)
                    record_purposes(temporary, purposes)
                    publish(temporary, folder)
    use(folder)
