"""The checks of `mlc_llm doctor`. Each check adds facts to the report, and problems or remarks."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from mlc_llm import __version__
from mlc_llm.backends.cuda import state as gpu_state
from mlc_llm.backends.cuda.driver import Gpu, shown
from mlc_llm.cli.amounts import size_words
from mlc_llm.cli.guard import one_line
from mlc_llm.errors import CacheError, MLCError
from mlc_llm.serve.precision_costs import read_costs
from mlc_llm.support import machine
from mlc_llm.support.cached import entries
from mlc_llm.support.files import cache_dir, refusal

DISTRIBUTION = "mlc-llm"

LOADED = ("tvm", "tvm_ffi_orcjit")
"""Native libraries that may fail to load although they are installed."""

_PACKAGE_NAME = re.compile(r"[^A-Za-z0-9._-]")
"""The end of a package's name in a requirement."""

LEAST_FREE_MEMORY = 512 * 2**20
LEAST_FREE_DISK = 512 * 2**20
"""Bytes. The default model, its packed weights and its library fit into them."""

MOST_ENTRIES = 40
"""The most entries of the cache that the report shows."""


@dataclass
class Report:
    """Facts by section. With `problems` a model cannot run, with `remarks` it is only slow."""

    sections: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def examine() -> Report:
    """Run all checks. They change nothing, but may create the cache folder."""
    report = Report()
    for look in (
        _look_at_machine,
        _look_at_gpus,
        _look_at_versions,
        _look_at_choice,
        _look_at_cache,
    ):
        look(report)
    return report


def _look_at_machine(report: Report) -> None:
    found = machine.describe()
    features = "not known" if found.features is None else " ".join(found.features) or "none of use"
    report.sections["machine"] = {
        "system": found.system,
        "processor": found.cpu,
        "features": features,
        "cores": f"{found.cores} usable",
        "memory": f"{_size(found.memory_free)} free of {_size(found.memory_total)}",
    }
    if found.memory_free is not None and found.memory_free < LEAST_FREE_MEMORY:
        report.problems.append(
            f"only {_size(found.memory_free)} of memory is free and the default model needs "
            f"{_size(LEAST_FREE_MEMORY)}; close other programs"
        )


def _look_at_gpus(report: Report) -> None:
    """NVIDIA's GPUs, and what is missing to compile for them and to use them."""
    found = gpu_state.look()
    report.sections["gpu"] = {
        "nvidia driver": found.driver,
        **{f"gpu {gpu.index}": _gpu_words(gpu) for gpu in found.gpus},
        "packages": found.packages,
    }
    if found.gpus:
        report.sections["gpu"]["models"] = gpu_state.why_not() or "can run on gpu 0"
    if len(found.gpus) > 1:
        report.sections["gpu"]["one model on several"] = found.together


def _gpu_words(gpu: Gpu) -> str:
    memory = f"{_size(gpu.free_memory)} free of {_size(gpu.total_memory)}"
    return gpu.problem or f"{gpu.name}, {shown(gpu.capability)}, {memory}"


def _look_at_versions(report: Report) -> None:
    versions = {"python": platform.python_version(), "mlc_llm": __version__}
    for name in _required(report):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "missing"
            report.problems.append(f"the package {name} is missing; install mlc-llm again")
    report.sections["versions"] = versions
    for module in LOADED:
        try:
            importlib.import_module(module)
        except Exception as error:  # a library that does not load can raise anything
            words = one_line(str(error))
            report.problems.append(f"{module} does not load ({words}); install mlc-llm again")


def _required(report: Report) -> list[str]:
    """The packages that this package needs, by its metadata, without those of extras."""
    try:
        wanted = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        report.problems.append(f"{DISTRIBUTION} is not installed; run pip install")
        return []
    return [_PACKAGE_NAME.split(one, maxsplit=1)[0] for one in wanted if "extra ==" not in one]


def _look_at_choice(report: Report) -> None:
    """The kernels and threads that the compiler and the runtime choose on this machine."""
    try:
        # Only this check needs TVM: the others must run if TVM does not load.
        from mlc_llm.backends.cpu.target import choose, fastest, missing_features, target_for
        from mlc_llm.backends.cpu.threads import configure_threads
        from mlc_llm.backends.registry import REFERENCE, choose_backend
        from mlc_llm.serve.opening.arguments import detect_device

        detect_device("cpu")  # raises for a wrong MLC_LLM_DEVICE
        if choose_backend().name == REFERENCE:
            report.sections["choice"] = {"kernels": f"{REFERENCE} (forced; slow)"}
            return
        chosen = choose()
        threads = configure_threads()
    except ImportError:
        return  # `_look_at_versions` has reported it
    except MLCError as error:
        report.problems.append(one_line(str(error)))
        return
    how = "forced" if chosen.forced else "the best for this machine"
    report.sections["choice"] = {
        "kernels": f"{chosen.isa.name} ({how})",
        "target": str(target_for(chosen.isa)),
        "threads": str(threads),
        "kv pages": f"{chosen.isa.kv_dtype}, or int8 if an engine's kv_cache_dtype says so",
    }
    best = fastest().name
    if chosen.isa.name != best and not chosen.forced:
        lacking = " ".join(missing_features(best))
        report.remarks.append(f"the fastest kernels, {best}, need features missing here: {lacking}")


def _look_at_cache(report: Report) -> None:
    try:
        folder, refused = cache_dir(), refusal()
    except (CacheError, OSError) as error:
        report.sections["cache"] = {"folder": "not usable"}
        report.problems.append(one_line(str(error)))
        return
    free = shutil.disk_usage(folder).free
    report.sections["cache"] = {
        "folder": str(folder),
        "free disk": _size(free),
        **_contents(folder),
    }
    costs = _costs(folder)
    if costs:
        report.sections["precision"] = costs
    if refused is not None:
        report.remarks.append(f"the usual cache folder is not used, because {refused}")
    if not os.access(folder, os.W_OK):
        report.problems.append(
            f"the cache folder {folder} cannot be written; make it writable or set MLC_LLM_HOME"
        )
    if free < LEAST_FREE_DISK:
        report.problems.append(
            f"only {_size(free)} of disk is free for the cache folder {folder}; "
            "make room or set MLC_LLM_HOME to another disk"
        )


def _contents(folder: Path) -> dict[str, str]:
    """The entries of the cache by name, with their sizes. Entries of one name are added up."""
    sizes: dict[str, list[int]] = {}
    for one in entries(folder):
        name = one.model if one.kind == "other" else f"{one.model}, {one.kind}"
        sizes.setdefault(name, []).append(one.size)
    shown = {name: _sizes(several) for name, several in list(sizes.items())[:MOST_ENTRIES]}
    if len(sizes) > MOST_ENTRIES:
        shown["..."] = f"and {len(sizes) - MOST_ENTRIES} more"
    return shown


def _costs(folder: Path) -> dict[str, str]:
    """What each precision costs on the models that were measured here, by model and precision."""
    packed = [one for one in entries(folder) if one.kind == "packed weights"]
    found = {
        f"{one.model}, {cost.precision}": cost.astext()
        for one in sorted(packed, key=lambda one: one.last_use)
        for cost in read_costs(one.path)
    }
    return dict(list(found.items())[-MOST_ENTRIES:])


def _sizes(several: list[int]) -> str:
    one = size_words(sum(several))
    return one if len(several) == 1 else f"{one} in {len(several)} pieces"


def _size(num_bytes: int | None) -> str:
    return "an unknown amount" if num_bytes is None else size_words(num_bytes)
