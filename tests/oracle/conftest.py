"""The benchmarks are scripts that lie beside each other, not a package: find them there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
