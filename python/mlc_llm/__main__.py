"""`python -m mlc_llm` is the same as `mlc_llm`."""

from __future__ import annotations

import os
import sys

try:
    from mlc_llm.cli.__main__ import program
except KeyboardInterrupt:  # it came before it was in hand
    os.write(2, b"mlc_llm: stopped by Ctrl-C\n")
    os._exit(130)

if __name__ == "__main__":
    sys.exit(program())
