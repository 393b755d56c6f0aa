"""llama.cpp, built from a pinned source archive; measured by its own benchmark programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .base import LIMIT, WORKERS, Missing, Trial, cmake_build, run, source_archive, timed

CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)
NATIVE = ("-DGGML_NATIVE=ON",)
AVX2 = ("-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DGGML_BMI2=ON")
AVX_VNNI = (*AVX2, "-DGGML_AVX_VNNI=ON")


TILES = Path("ggml", "src", "ggml-cpu", "amx", "mmq.cpp")
LOADED = "    _tile_loadconfig(&tc);"
KEPT = '    asm volatile("" : : "r"(&tc) : "memory");\n'


class LlamaCpp:
    """The archive contains llama.cpp (commit 0c1e570) and comes from the package index.

    llama-bench runs each test once before measuring and draws random tokens: its speeds include
    no sampling, ours do.
    """

    name = "llama.cpp"
    package, release = "llama-cpp-python", "0.3.36"
    source = Path("vendor", "llama.cpp")
    programs: tuple[str, ...] = ("llama-bench", "llama-batched-bench", "llama-quantize")
    options: tuple[str, ...] = CMAKE_OPTIONS + NATIVE
    flags = "native"
    build = "build"
    bindings = Path("llama_cpp", "llama_cpp.py")
    """Its C functions in ctypes, in the source archive."""
    library = ("LLAMA_CPP_LIB_PATH", "bin")
    """A variable of the bindings, and what it names in the folder of the build."""
    bench_options: tuple[str, ...] = ()
    batched_options: tuple[str, ...] = ()
    cold_options: tuple[str, ...] = ("--no-warmup",)

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder, self.threads = folder, threads
        self.bin = folder / self.build / "bin"

    def install(self) -> str:
        if not all((self.bin / program).exists() for program in self.programs):
            source = source_archive(self.folder, self.package, self.release) / self.source
            self.complete(source)
            cmake_build(self.folder / self.build, source, self.options, self.programs)
        return f"{self.package} {self.release}, built here: {self.flags}"

    def complete(self, source: Path) -> None:
        """Correct an error of GCC 12: it takes `_tile_loadconfig` for a load of 8 bytes and drops
        the other 56 bytes, so the first tile instruction is illegal."""
        file = source / TILES
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        if LOADED in text and KEPT not in text:
            file.write_text(text.replace(LOADED, KEPT + LOADED), encoding="utf-8")

    def open(self, model: Path) -> LlamaSession:
        return LlamaSession(self, model)

    @staticmethod
    def single(test: Trial) -> tuple[str, ...]:
        """llama-bench's options for one stream."""
        if not test.tokens:
            return ("-p", str(test.depth), "-n", "0")
        return ("-p", "0", "-n", str(test.tokens), "-d", str(test.depth))

    def cold_start(self, model: Path) -> float:
        """A 16-token prompt to the end of the process: its output would be one token."""
        once = ("-p", "16", "-n", "0", "-r", "1", *self.cold_options, *self.bench_options)
        return timed([self.bin / "llama-bench", "-m", model, "-t", str(self.threads), *once])

    def logits(self, model: Path, pieces: Path, target: Path) -> None:
        source = source_archive(self.folder, self.package, self.release)
        variable, place = self.library
        setting = f"{variable}={self.folder / self.build / place}"
        worker = [sys.executable, WORKERS / "llama_logits.py", source / self.bindings]
        run(["env", setting, *worker, model, pieces, target, self.threads], limit=LIMIT)


class LlamaAvx2(LlamaCpp):
    """The same without AVX-512, to compare it with our AVX2 kernels."""

    name = "llama.cpp, AVX2"
    options: tuple[str, ...] = CMAKE_OPTIONS + AVX2
    flags = "AVX2, no AVX-512"
    programs = ("llama-bench",)
    build = "build-avx2"


class LlamaAvxVnni(LlamaAvx2):
    """The same with AVX-VNNI."""

    name = "llama.cpp, AVX-VNNI"
    options = CMAKE_OPTIONS + AVX_VNNI
    flags = "AVX2 and AVX-VNNI, no AVX-512"
    build = "build-avx-vnni"


class LlamaSession:
    """Every test is a fresh process, so a session has no process."""

    def __init__(self, side: LlamaCpp, model: Path) -> None:
        self._side, self._model = side, model

    def wait(self) -> None:
        pass

    def measure(self, test: Trial) -> float:
        return self._single(test) if test.streams == 1 else self._batched(test)

    def close(self) -> None:
        pass

    def _single(self, test: Trial) -> float:
        options = [*self._side.single(test), *self._side.bench_options, "-r", "1", "-o", "json"]
        (entry,) = json.loads(self._run("llama-bench", options))
        return float(entry["samples_ts"][0])

    def _batched(self, test: Trial) -> float:
        """llama-batched-bench's decoding speed, which leaves the prompts out."""
        context = test.streams * (test.depth + test.tokens)
        sizes = {"-c": context, "-npp": test.depth, "-ntg": test.tokens, "-npl": test.streams}
        options = [str(part) for pair in sizes.items() for part in pair]
        options += ["-tb", str(self._side.threads), *self._side.batched_options]
        text = self._run("llama-batched-bench", options, both=True)
        return batched_speed(text, test.streams)

    def _run(self, program: str, options: Sequence[str], *, both: bool = False) -> str:
        common = ("-m", self._model, "-t", str(self._side.threads))
        return run([self._side.bin / program, *common, *options], limit=LIMIT, both=both)


def batched_speed(text: str, streams: int) -> float:
    """The column S_TG of the one row of llama-batched-bench's table; Missing if there is none."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) >= 8 and cells[2] == str(streams):
            return float(cells[7])
    raise Missing("llama-batched-bench printed no result")
