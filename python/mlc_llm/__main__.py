"""`python -m mlc_llm` is the same as `mlc_llm`."""

from __future__ import annotations

import sys

from mlc_llm.cli.__main__ import program

if __name__ == "__main__":
    sys.exit(program())
