"""`python -m mlc_llm.cli.tied COMMAND ...`: a command that ends when its standard input does.

The program that starts it holds the other end of a pipe. However that program ends, by a crash too,
the system closes the pipe.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from mlc_llm.cli.__main__ import program

PATIENCE_S = 5.0
"""Between SIGTERM, the second SIGTERM, and the end by force."""


def main() -> int:
    """Run the command. Returns its exit code."""
    threading.Thread(target=_end_with_the_input, daemon=True).start()
    return program()


def _end_with_the_input() -> None:
    while os.read(0, 4096):
        pass
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
