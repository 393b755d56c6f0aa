"""Two ranks with one thread each beside one process with two threads, in turns.

    python benchmarks/ranks.py [--models default 1b-q4_0] [--rounds 3] [--write]

Each round starts `single_stream.py` anew for each way, one at a time. A ratio above 1 says that two
ranks are faster. Both ways have the same two cores of one machine here, so two ranks gain no
bandwidth: what is seen is what the sums over ranks and the split matrices cost. `--write` puts the
table into docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import server_page
from common import HERE, Spread, print_configuration
from compared_models import model_file

from mlc_llm.support.files import cache_root

ONE, TWO = "one process, two threads", "two ranks, one thread each"
WAYS: Mapping[str, Sequence[str]] = {
    ONE: ("--threads", "2"),
    TWO: ("--threads", "1", "--ranks", "2"),
}
TESTS = {"decode here": "decode", "prefill 512": "prompt of 512 tokens"}
"""Of `single_stream.py`, and their names in the table."""
MODELS = {"default": "default model", "1b-q4_0": "1B Q4_0"}

Samples = dict[tuple[str, str, str], list[float]]
"""By model, test and way: tokens a second."""


def measured(model: Path, way: str, repeat: int) -> Mapping[str, list[float]]:
    """What `single_stream.py` says, in a process of its own."""
    script = [sys.executable, str(HERE / "single_stream.py"), "--json", "--repeat", str(repeat)]
    command = [*script, "--model", str(model), *WAYS[way]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{way}: {done.stderr.strip().splitlines()[-1:]}")
    found: Mapping[str, list[float]] = json.loads(done.stdout)["samples"]
    return found


def table(samples: Samples) -> str:
    """Medians with the least and the greatest value, and the ratio of the medians."""
    lines = [f"| tok/s | {ONE} | {TWO} | ratio |", "|---|---|---|---|"]
    for model, test in dict.fromkeys((model, test) for model, test, _ in samples):
        one, two = (Spread.of(samples[model, test, way]) for way in (ONE, TWO))
        name = f"{MODELS.get(model, model)}, {TESTS[test]}"
        lines.append(f"| {name} | {one} | {two} | {two.median / one.median:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3, help="measurements of a process")
    parser.add_argument("--made", type=Path, default=cache_root() / "compared", help="models")
    parser.add_argument("--write", action="store_true", help="into docs/scale.md")
    args = parser.parse_args()
    print_configuration("ranks", rounds=args.rounds, repeat=args.repeat)
    samples: Samples = {}
    for model in args.models:
        path = model_file(model, args.made, None)
        for _ in range(args.rounds):
            for way in WAYS:
                found = measured(path, way, args.repeat)
                for test in TESTS:
                    samples.setdefault((model, test, way), []).extend(found[test])
    text = table(samples)
    print(text)
    if args.write:
        server_page.write("", text, server_page.SCALE, "ranks.py")


if __name__ == "__main__":
    main()
