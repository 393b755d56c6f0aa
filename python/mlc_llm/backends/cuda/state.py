"""What a machine has of all that computing on an NVIDIA GPU needs."""

from __future__ import annotations

from mlc_llm.backends.cuda import packages
from mlc_llm.backends.cuda.driver import Driver, Gpu, usable_gpu
from mlc_llm.errors import UnusableDevice
from mlc_llm.record import record


@record()
class State:
    """In words, for a report."""

    driver: str
    packages: str
    gpus: tuple[Gpu, ...] = ()
    together: str = ""
    """What a model on several of them needs besides."""


def look() -> State:
    """What there is. Raises nothing."""
    lacking = packages.missing()
    words = f"missing: {', '.join(lacking)} (pip install 'mlc-llm[cuda]')" if lacking else "all"
    lacking = packages.missing(packages.NCCL)
    together = "NCCL is missing: pip install 'mlc-llm[cuda-ranks]'" if lacking else "NCCL is there"
    try:
        driver = Driver()
        version = "for CUDA {}.{}".format(*driver.version)
        return State(version, words, tuple(driver.gpus()), together)
    except UnusableDevice as error:
        return State(str(error), words, together=together)


def why_not() -> str | None:
    """Why models do not run on the first GPU, in one line; None: they do."""
    problems = []
    for check in (lambda: packages.require(*packages.TO_RUN), usable_gpu):
        try:
            check()
        except UnusableDevice as error:
            problems.append(str(error))
    return "; besides, ".join(problems) or None
