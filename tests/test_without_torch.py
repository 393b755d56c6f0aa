"""TVM does not import torch for us, and nobody else misses it.

Each test starts a fresh process with a stand-in for torch first on its path, so that the tests need
no torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlc_llm import without_torch
from mlc_llm.without_torch import WithoutTorch

TORCH = {
    "torch/__init__.py": """
import torch.cuda, torch.version
class Tensor: ...
class dtype: ...

def __getattr__(name):  # int8, float32 ...
    return f"torch.{name}"
""",
    "torch/cuda.py": "def is_available(): return False\n",
    "torch/version.py": "cuda = hip = None\n",
    "torch/utils/__init__.py": "",
    "torch/utils/dlpack.py": "def to_dlpack(tensor): raise NotImplementedError\n",
}
TVM = {
    # What the import of torch gives, in a module of TVM, and later, in a function of it.
    "tvm/__init__.py": """
import other_thread

def has_torch():
    try:
        import torch
    except ImportError:
        return False
    return True

first = has_torch()
other_thread.import_torch()
""",
    "other_thread.py": """
import threading
seen = []

def _import():
    import torch
    seen.append(torch)

def import_torch():
    thread = threading.Thread(target=_import)
    thread.start()
    thread.join()
""",
}
IMPORT_BY_US = """
import sys
ours = {"__name__": "mlc_llm.stand_in"}
exec("import mlc_llm, tvm", ours)
"""


def run(folder: Path, code: str, files: dict[str, str]) -> str:
    """What a fresh process prints where `files` are the first on Python's path."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ
        | {"TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"},  # it would compile an extension for torch
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("ours", ["runtime.model_runner", "backends.cpu.ops"])
def test_our_modules_load_tvm_without_torch(tmp_path: Path, ours: str) -> None:
    code = f"import mlc_llm.{ours}; print('tvm_ffi' in sys.modules, 'torch' in sys.modules)"
    assert run(tmp_path, code, TORCH) == "True False"


def test_a_later_import_of_torch_works(tmp_path: Path) -> None:
    code = "import mlc_llm.runtime.model_runner, torch; print(torch.__file__)"
    assert run(tmp_path, code, TORCH) == str(tmp_path / "torch" / "__init__.py")


def test_torch_that_is_there_already_stays(tmp_path: Path) -> None:
    code = "import torch, mlc_llm.runtime.model_runner, tvm_ffi; tvm_ffi.use_torch_stream()"
    run(tmp_path, code, TORCH)  # it raises where tvm_ffi has no torch


def test_the_users_own_import_of_tvm_is_left_alone(tmp_path: Path) -> None:
    code = "import mlc_llm, tvm_ffi; print('torch' in sys.modules)"
    assert run(tmp_path, code, TORCH) == "True"


def test_another_thread_may_import_torch_meanwhile(tmp_path: Path) -> None:
    code = IMPORT_BY_US + "print(sys.modules['tvm'].first, len(sys.modules['other_thread'].seen))"
    assert run(tmp_path, code, TORCH | TVM) == "False 1"


def test_functions_of_tvm_may_import_torch_later(tmp_path: Path) -> None:
    tvm = TVM | {"other_thread.py": "def import_torch(): ..."}
    code = IMPORT_BY_US + "exec('import tvm; print(tvm.first, tvm.has_torch())', ours)"
    assert run(tmp_path, code, TORCH | tvm) == "False True"


def test_it_is_installed_once() -> None:
    without_torch.install()
    assert sys.meta_path.count(WithoutTorch) == 1
    assert WithoutTorch.find_spec("torch") is None  # TVM is not being imported
