"""Sums over GPUs in several processes, on stand-ins for CUDA and NCCL."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from fake_cuda import run_in_fake
from nccl_programs import SIZES, faults, same_sums

from mlc_llm.backends.cuda import gpu_ranks, nccl, packages
from mlc_llm.backends.cuda.driver import Driver, Gpu
from mlc_llm.errors import UnusableDevice

NO_NCCL = bool(packages.missing(packages.NCCL))


@pytest.mark.parametrize("shards", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_all_ranks_get_the_sum(fake: dict[str, str], shards: int) -> None:
    *others, last = run_in_fake(fake, same_sums, shards, FAKE_CUDA_GPUS=shards).splitlines()
    assert [json.loads(one) for one in others] == [[0, ""]] * (shards - 1)
    calls, alive, threads = json.loads(last)
    assert calls == [f"ncclAllReduce {size} stream 0" for size in SIZES] * 2
    assert not any(alive) and threads == []


REMOTE = "unhandled cuda error (run with NCCL_DEBUG=INFO for details): "
CASES = {
    "a rank dies": ({}, "dies", 60, "EngineDead: a rank has ended with 3"),
    "a rank does not come": ({}, "waits", 0.5, "EngineDead: the GPUs have not ended a step in 0 s"),
    "a rank does not come, and the GPU waits for it": (
        {"FAKE_NCCL_PATIENCE": 100}, "waits", 1, "EngineDead: the GPUs have not ended a step in 1 s"
    ),
    "a rank never joins": (
        {"FAKE_NCCL_ABSENT": 1}, "joins", 0.5,
        "EngineDead: ncclCommInitRankConfig has waited for other ranks for 0 s",
    ),
    "an error comes later": (
        {"FAKE_NCCL_ASYNC": "20@0"}, "", 60,
        f"EngineDead: NCCL failed in ncclCommGetAsyncError: {REMOTE}a link is down",
    ),
    "a sum fails": (
        {"FAKE_NCCL_FAILS": "ncclAllReduce=1@0"}, "first", 60,
        f"DeviceFailed: NCCL failed in ncclAllReduce: {REMOTE}as the test asked, in ncclAllReduce",
    ),
    "a rank cannot join": (
        {"FAKE_NCCL_FAILS": "ncclCommInitRankConfig=2@1"}, "joins", 60,
        "EngineDead: a rank has ended with 1",
    ),
}  # fmt: skip


@pytest.mark.one_of(4)
@pytest.mark.parametrize("case", CASES)
def test_a_fault_ends_all_ranks(fake: dict[str, str], case: str) -> None:
    """With its reason, soon; and nothing waits for the GPU any more."""
    settings, says, stalled_s, words = CASES[case]
    once = int(says in ("dies", "waits", ""))
    given = says, stalled_s, 1, once
    *_, last = run_in_fake(fake, faults, *given, FAKE_CUDA_GPUS=2, **settings).splitlines()
    error, took, communicators = json.loads(last)
    assert error == words
    assert took < 15 and communicators == 0


@pytest.mark.slow
def test_ranks_that_add_up_other_things_end(fake: dict[str, str]) -> None:
    settings = {"FAKE_CUDA_GPUS": 2, "FAKE_NCCL_PATIENCE": 2000}
    other, last = run_in_fake(fake, faults, "adds less", 60, 1, 1, **settings).splitlines()
    (code, said), (error, took, _) = map(json.loads, (other, last))
    assert code == 1 and "EngineDead" in said
    assert "they do not compute the same step" in error
    assert took < 15


GPU = Gpu(0, "A", (9, 0), 80 << 30, 70 << 30)
OTHERS = [
    replace(GPU, index=1, free_memory=60 << 30),
    replace(GPU, index=2, name="B", capability=(8, 0)),
]


def test_which_gpus_ranks_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has one of its own, and all are of one kind."""
    monkeypatch.setattr(packages, "missing", lambda *names: [])
    monkeypatch.setattr(Driver, "__init__", lambda self: None)
    monkeypatch.setattr(Driver, "gpus", lambda self: [GPU, *OTHERS])
    assert gpu_ranks.why_not(2) is None
    assert gpu_ranks.free_memory(2) == 60 << 30
    assert gpu_ranks.why_not(3) == ("GPU 2: B is sm_80, A sm_90, and ranks need GPUs of one kind")
    assert gpu_ranks.why_not(4) == (
        "each rank needs a GPU of its own, and the NVIDIA driver shows 3; "
        "give at most that many ranks"
    )
    assert gpu_ranks.environment(1, {}) == {"CUDA_VISIBLE_DEVICES": "1"}
    shown = {"CUDA_VISIBLE_DEVICES": "5, GPU-0a1b"}
    assert gpu_ranks.environment(1, shown) == {"CUDA_VISIBLE_DEVICES": "GPU-0a1b"}


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "roots", lambda folder="": [])
    why = "a package is missing: nvidia-nccl-cu13; pip install 'mlc-llm[cuda-ranks]'"
    assert gpu_ranks.why_not(2) == why
    nccl.load_nccl.cache_clear()
    with pytest.raises(UnusableDevice, match="nvidia-nccl-cu13"):
        nccl.load_nccl()


REAL = """
from mlc_llm.backends.cuda import nccl
from mlc_llm.errors import DeviceFailed
made = nccl.load_nccl()
assert made.version() >= (2, 14, 0)
keys = [made.new_id() for _ in range(2)]
assert len({*keys}) == 2 and all(len(one) == nccl.ID_BYTES for one in keys)
listening = [int(line.split()[1].split(":")[0], 16) for line in open("/proc/self/net/tcp")
             if line.split()[9] in sockets()]
assert listening and {*listening} == {0x0100007F}, listening
try:
    nccl.Communicator(made, keys[0], 0, 1, lambda: None)
    print("a GPU computes")
except DeviceFailed as error:
    print(error)
"""
SOCKETS = """
import os, re
def sockets():
    links = []
    for one in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{one}"))
        except OSError:
            pass
    return {found.group(1) for link in links if (found := re.match(r"socket:.(\\d+)", link))}
"""


@pytest.mark.skipif(NO_NCCL, reason="needs nvidia-nccl-cu13 (the extra cuda-ranks)")
def test_the_real_library() -> None:
    """It takes our calls. Ids are as long as we think, and it listens to this machine alone."""
    done = subprocess.run(
        [sys.executable, "-c", SOCKETS + REAL], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    words = "NCCL failed in ncclCommInitRankConfig: unhandled cuda error"
    assert done.stdout.startswith((words, "a GPU computes"))


@pytest.mark.skipif(NO_NCCL, reason="needs nvidia-nccl-cu13 (the extra cuda-ranks)")
def test_the_header_of_the_real_library() -> None:
    """Signatures and numbers are those that it has."""
    (root,) = packages.roots("nccl")
    text = " ".join((root / "include" / "nccl.h").read_text("utf-8").split())
    for line in HEADER:
        assert line in text, line


HEADER = (
    "#define NCCL_UNIQUE_ID_BYTES 128",
    "#define NCCL_API_MAGIC 0xcafebeef",
    "ncclInProgress = 7,",
    "ncclSum = 0,",
    "ncclFloat32 = 7,",
    "size_t size; unsigned int magic; unsigned int version; "
    "/* attributes that users are able to customize. */ int blocking; int cgaClusterSize;",
    "ncclResult_t ncclGetVersion(int *version);",
    "ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId);",
    "ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, "
    "int rank, ncclConfig_t* config);",
    "ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, "
    "ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);",
    "ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);",
    "ncclResult_t ncclCommAbort(ncclComm_t comm);",
    "const char* ncclGetErrorString(ncclResult_t result);",
    "const char* ncclGetLastError(ncclComm_t comm);",
)


def test_two_ranks_on_one_gpu(fake: dict[str, str]) -> None:
    *_, last = run_in_fake(fake, faults, "joins", 60, 0, 0, FAKE_CUDA_GPUS=2).splitlines()
    error, _, communicators = json.loads(last)
    assert "Duplicate GPU detected : rank 1 and rank 0 both on GPU 0" in error
    assert communicators == 0
