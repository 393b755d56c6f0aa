"""Write docs/terminal.svg: what a terminal shows of real commands.

    .venv/bin/python scripts/terminal_picture.py

Every command runs now, with the default model, and its output is taken as it is. The first one
begins with an empty cache of compiled models.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 96
COMMANDS = (
    'mlc_llm generate "Name three primary colors." --temperature 0',
    "mlc_llm generate \"Ada is 36 years old.\" --temperature 0 --regex 'name: \\w+, age: \\d+'",
    "mlc_llm fit | tail -6",
)


def shown(command: str, home: str) -> str:
    """All bytes that a command writes to a terminal."""
    main, terminal = pty.openpty()
    environment = os.environ | {
        "MLC_LLM_HOME": home,
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with subprocess.Popen(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        env=environment,
        cwd=ROOT,
    ):
        os.close(terminal)
        pieces = []
        try:
            while piece := os.read(main, 1 << 16):
                pieces.append(piece)
        except OSError:  # Linux says so when the last writer has gone
            pass
    os.close(main)
    return b"".join(pieces).decode("utf-8", "replace")


def last_states(text: str) -> str:
    """What stays of lines that were written over."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(line.rsplit("\r", 1)[-1] for line in lines)


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as home:
        for command in COMMANDS:
            console.print(Text("$ ", style="bold green") + Text(command, style="bold"))
            console.print(Text.from_ansi(last_states(shown(command, home)).rstrip("\n")))
            console.print()
    picture = console.export_svg(title="mlc_llm")
    # Readers of a page load nothing from elsewhere: the system's own fixed-width font will do.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    (ROOT / "docs" / "terminal.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
