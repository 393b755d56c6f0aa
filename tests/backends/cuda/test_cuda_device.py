"""Memory and code of a GPU, on the stand-in for CUDA: it copies numbers and launches nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_cuda import DEVICE, MODULE, run_in_fake
from fake_programs import (
    GIVING_BACK,
    MENDED_BY_TVM,
    device_calls,
    fail_calls_of_a_device,
    full_memory,
)


def test_a_step_is_one_copy_and_weights_go_in_chunks(
    fake: dict[str, str], doubler_library: Path
) -> None:
    step, upload, alive = json.loads(run_in_fake(fake, device_calls, str(doubler_library)))
    assert step == [
        "cudaMemcpyAsync 192 pinned to device stream 0",  # 16 and 80 bytes, each to a 64th
        "cudaEventRecord",
    ]
    assert upload == [
        f"cudaMemcpyAsync {size} pinned to device stream 0" for size in (1000, 1000, 500)
    ]
    assert alive == [0] * len(alive)


GIVEN_BACK = ("", *GIVING_BACK)
HARMLESS = (*GIVEN_BACK, *MENDED_BY_TVM)
EVERY = [29, pytest.param(1, marks=pytest.mark.slow)]


def failures(fake: dict[str, str], library: Path, loses: int, every: int) -> list[Any]:
    """What `failing_once` says of each call that failed."""
    said = run_in_fake(fake, fail_calls_of_a_device, str(library), loses, every).splitlines()
    assert len(said) >= 100 // every
    return [json.loads(line) for line in said]


@pytest.mark.parametrize("every", EVERY)
def test_a_call_may_fail_and_nothing_is_left(
    fake: dict[str, str], doubler_library: Path, every: int
) -> None:
    for failed, silent, error, alive in failures(fake, doubler_library, 0, every):
        assert failed
        assert silent in HARMLESS
        if error is not None:
            assert failed in error or "CUDA_ERROR_FAKE" in error or "(700)" in error, failed
        if failed in ("cudaSetDevice", "cudaGetDevice"):  # before TVM gives back its own
            alive[MODULE] = alive[DEVICE] = 0
        assert alive == [0] * len(alive), (failed, error)


@pytest.mark.parametrize("every", EVERY)
def test_a_lost_gpu_ends_no_process(
    fake: dict[str, str], doubler_library: Path, every: int
) -> None:
    """TVM's own tensors would, where they give back their memory."""
    for failed, silent, _, alive in failures(fake, doubler_library, 1, every):
        assert alive[DEVICE] <= 1, failed  # what TVM keeps for the next step
        assert silent in GIVEN_BACK


def test_a_full_memory(fake: dict[str, str]) -> None:
    said = run_in_fake(fake, full_memory, FAKE_CUDA_MEMORY=10 << 20).strip()
    assert said == "the GPU has 4 MiB free, and 5 MiB are needed in one piece"
