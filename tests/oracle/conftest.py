"""The benchmarks are scripts that lie beside each other, not a package: find them there. The tools
of the tests of architectures lie beside those tests."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "models")]
