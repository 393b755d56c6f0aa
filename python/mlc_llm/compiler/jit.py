"""Model libraries and packed weights on demand, cached by everything that shapes them."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from mlc_llm.compiler.target import choose, processor
from mlc_llm.compiler.weights import count_parameters, pack_weights, plan_model
from mlc_llm.kernels.isa import Isa
from mlc_llm.model_lib import INDEX_FILE, METADATA_FILE, VERSION
from mlc_llm.models.gguf_llama import Plan
from mlc_llm.support.files import cache_dir, cache_root, file_lock, new_folder, publish
from mlc_llm.support.progress import Progress, progress
from mlc_llm.support.superseded import lock_of, record_purpose, use

PACKAGE = Path(__file__).resolve().parent.parent
SHAPING_FOLDERS = ("kernels", "models", "compiler", "quantization")
"""Source folders whose every change makes libraries and packed weights anew."""

ShowProgress = Callable[[str, float | None], AbstractContextManager[Progress]]


class ModelFile(Protocol):
    """What is read of a GGUF file (`loader.gguf.GGUFFile`)."""

    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Any: ...

    @property
    def tensors(self) -> Any: ...


@dataclass(frozen=True)
class Prepared:
    """A model ready for `runtime.model_runner.ModelRunner`."""

    plan: Plan
    isa: Isa
    library: Path
    weights: Path


def prepare(
    model: ModelFile,
    kernels: str | None = None,
    *,
    rebuild: bool = False,
    show: ShowProgress = progress,
) -> Prepared:
    """Finds library and weights in the cache, or makes them. `rebuild` replaces what is there.

    Older builds for the same model are removed when they have not been used for a day.

    Two processes that want the same at once: the second waits for the first. Raises
    UnsupportedModel, ModelFileError, CacheError, CompileError, InvalidField.
    """
    isa = choose(kernels).isa
    plan = plan_model(model.metadata, model.tensors, isa)
    library = cache_dir("model_lib") / library_key(plan, isa)
    weights = cache_dir("model_weights") / "packed" / weights_key(model, plan)

    def build(folder: Path) -> None:
        from mlc_llm.compiler.build import build_library

        label = f"compiling {plan.config.architecture} for {isa.name}"
        with show(label, None):
            build_library(plan.config, isa, folder)

    def pack(folder: Path) -> None:
        with show("packing weights", count_parameters(plan)) as shown:
            pack_weights(plan, model.tensors, folder, shown.advance)

    _make(library, METADATA_FILE, library_purpose(plan, isa), build, rebuild)
    _make(weights, INDEX_FILE, weights_purpose(model, isa), pack, rebuild)
    return Prepared(plan, isa, library, weights)


def packed_weights(model: ModelFile, kernels: str | None = None) -> Path | None:
    """The folder of a model's packed weights if they are in the cache. Raises like `prepare`."""
    plan = plan_model(model.metadata, model.tensors, choose(kernels).isa)
    folder = cache_root() / "model_weights" / "packed" / weights_key(model, plan)
    return folder if (folder / INDEX_FILE).exists() else None


def library_key(plan: Plan, isa: Isa) -> str:
    """Name of the library's folder: a hash over shapes, formats, target, source and versions."""
    return _digest(
        {
            "config": _compiled_config(plan),
            "isa": asdict(isa),
            "machine": [platform.system(), platform.machine(), processor(isa)],
            "source": source_hash(),
            "tvm": version("apache-tvm"),
            "version": VERSION,
        }
    )


def library_purpose(plan: Plan, isa: Isa) -> str:
    """What libraries have in common of which the newer replaces the older."""
    return _digest({"config": _compiled_config(plan), "isa": isa.name})


def weights_key(model: ModelFile, plan: Plan) -> str:
    """Name of the packed weights' folder: a hash over the file's identity and the layout."""
    parts = model.path.name.replace("-00001-of-", "-*-of-")
    files = sorted(model.path.resolve().parent.glob(parts)) or [model.path]
    stats = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return _digest({"files": stats, "plan": asdict(plan), "source": source_hash()})


def weights_purpose(model: ModelFile, isa: Isa) -> str:
    """What packed weights have in common of which the newer replace the older."""
    return _digest({"file": str(model.path.resolve()), "half": isa.half, "fixed": isa.tiles})


@cache
def source_hash() -> str:
    """Hash of the source files that decide what is compiled and how weights are laid out."""
    digest = hashlib.sha256()
    for folder in SHAPING_FOLDERS:
        for file in sorted((PACKAGE / folder).glob("*.py")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    digest.update((PACKAGE / "model_lib.py").read_bytes())
    return digest.hexdigest()


def _compiled_config(plan: Plan) -> dict[str, Any]:
    """The model's shape without what is only known at run time."""
    config = asdict(plan.config)
    for run_time_only in ("context_window", "rope"):
        del config[run_time_only]
    return config


def _make(
    folder: Path, last_file: str, purpose: str, work: Callable[[Path], None], rebuild: bool
) -> None:
    """Fills `folder` unless it is there. It appears all at once, under a lock."""
    if rebuild or not (folder / last_file).exists():
        with file_lock(lock_of(folder)):
            # Another process may have made it while this one waited.
            if rebuild or not (folder / last_file).exists():
                with new_folder(folder.parent) as temporary:
                    work(temporary)
                    record_purpose(temporary, purpose)
                    publish(temporary, folder)
    use(folder)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
