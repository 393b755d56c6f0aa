"""`mlc_llm doctor`: a report of the machine, the versions, the cache, the kernels and problems."""

from __future__ import annotations

import argparse
import json
import sys

from mlc_llm.cli.checkup import Report, examine
from mlc_llm.cli.guard import INTERNAL_ERROR, OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the report. The exit code is 1 if a problem prevents that a model runs."""
    report = examine()
    sys.stdout.write(_as_json(report) if args.json else _as_text(report))
    return INTERNAL_ERROR if report.problems else OK


def _as_json(report: Report) -> str:
    return (
        json.dumps(
            {**report.sections, "problems": report.problems, "remarks": report.remarks}, indent=2
        )
        + "\n"
    )


def _as_text(report: Report) -> str:
    lines: list[str] = []
    for title, facts in report.sections.items():
        width = max(len(name) for name in facts)
        lines += [f"{title}:", *(f"  {name:<{width}}  {fact}" for name, fact in facts.items()), ""]
    lines += [f"problem: {words}" for words in report.problems]
    lines += [f"remark: {words}" for words in report.remarks]
    if not report.problems:
        lines.append("no problems found")
    return "\n".join(lines) + "\n"
