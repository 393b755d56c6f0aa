"""ik_llama.cpp, the fork of llama.cpp made for speed on CPUs, from its source archive."""

from __future__ import annotations

from pathlib import Path

from .base import Trial
from .llama_cpp import NATIVE, LlamaCpp

BUILD_INFO = """\
set(BUILD_NUMBER 0)
set(BUILD_COMMIT "unknown")
set(BUILD_COMPILER "unknown")
set(BUILD_TARGET "unknown")
set(HERE "${CMAKE_CURRENT_LIST_DIR}/..")
configure_file("${HERE}/build-info.cpp.in" "${HERE}/build-info.cpp")
"""


class IkLlama(LlamaCpp):
    """Weights are repacked when they are loaded (-rtr), as its authors advise for CPUs.

    Its flash attention aborts on several sequences with heads of 64, so it is off there.
    """

    name = "ik_llama.cpp"
    package, release = "ik-llama-cpp-python", "0.1.5"
    source = Path("vendor", "ik_llama.cpp")
    programs = ("llama-bench", "llama-batched-bench")
    options = (
        "-DCMAKE_BUILD_TYPE=Release",
        "-DLLAMA_CURL=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=ON",
        "-DLLAMA_BUILD_SERVER=OFF",
        *NATIVE,
    )
    build = "ik-build"
    bindings = Path("ik_llama_cpp", "_ctypes_api.py")
    library = ("IK_LLAMA_CPP_LIB_PATH", "src/libllama.so")
    bench_options = ("-rtr", "1")
    batched_options = ("-rtr", "-no-fa")
    cold_options = ("-w", "0")

    def complete(self, source: Path) -> None:
        """The archive lacks the script that writes down what was built."""
        script = source / "common" / "cmake" / "build-info-gen-cpp.cmake"
        script.parent.mkdir(exist_ok=True)
        script.write_text(BUILD_INFO)

    @staticmethod
    def single(test: Trial) -> tuple[str, ...]:
        """-gp gives the speed of generating behind a prompt."""
        if not test.tokens:
            return ("-p", str(test.depth), "-n", "0")
        return ("-p", "0", "-n", "0", "-gp", f"{test.depth},{test.tokens}")
