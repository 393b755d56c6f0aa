"""Run `tests/contract` and `tests/page`: programs of others against our server. Started by
`scripts/test --contract`.

The clients live in environments of their own below `.venv-contract`, because some contradict each
other and none may be seen by the server. `tests/contract/requirements/NAME.txt` is the environment
of `tests/contract/test_NAME.py` and `test_NAME_*.py`; `page.txt` is that of `tests/page`,
`parsers.txt` that of `tests/fuzz/test_parsers.py`, `clients.txt` that of the rest. npm installs
what `tests/contract/node/package.json` names, if it is there.

Arguments that name test files or folders choose among them; the others go to pytest.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
CONTRACT, PAGE = ROOT / "tests" / "contract", ROOT / "tests" / "page"
PARSERS = ROOT / "tests" / "fuzz" / "test_parsers.py"
PLACE = ROOT / ".venv-contract"
LARGE = {"lm_eval"}
"""Environments that are made only if their tests are named."""
NONE_FOUND = 5
"""What pytest ends with if no test was chosen."""


@dataclass(frozen=True)
class Environment:
    """Packages, and the tests that need them."""

    requirements: Path
    tests: tuple[Path, ...]

    @property
    def name(self) -> str:
        return self.requirements.stem

    @property
    def folder(self) -> Path:
        return PLACE / self.name


@dataclass(frozen=True)
class Result:
    """What became of the tests of one file. `word` is "passed", "skipped" or "failed"."""

    file: str
    word: str
    details: str


def environments() -> list[Environment]:
    """All of them. Each test file is in one."""
    files = sorted((CONTRACT / "requirements").glob("*.txt"))
    own = {file.stem: _named(file.stem) for file in files}
    taken = {test for tests in own.values() for test in tests}
    own["clients"] = tuple(test for test in _found(CONTRACT, "test_*.py") if test not in taken)
    own |= {"page": _found(PAGE, "test_*.py"), "parsers": (PARSERS,)}
    return [Environment(file, own[file.stem]) for file in files]


def _named(name: str) -> tuple[Path, ...]:
    """The test files with this name in theirs."""
    return _found(CONTRACT, f"test_{name}.py") + _found(CONTRACT, f"test_{name}_*.py")


def _found(folder: Path, pattern: str) -> tuple[Path, ...]:
    return tuple(sorted(folder.glob(pattern)))


def chosen(names: Sequence[Path], test: Path) -> bool:
    """Is the test file named, or below a folder that is named? No name means all."""
    return not names or any(name == test or name in test.parents for name in names)


def split(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The files and folders among the arguments, and the rest."""
    named = [one for one in arguments if not one.startswith("-") and Path(one).exists()]
    return [Path(one).resolve() for one in named], [one for one in arguments if one not in named]


def install(folder: Path, wanted: Path, command: Sequence[str]) -> str | None:
    """Run the command, once for each text of the file `wanted` and each place and Python. The
    reason if that fails."""
    stamp = folder / ".installed"
    text = f"{folder}\n{sys.version}\n{wanted.read_text(encoding='utf-8')}"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == text:
        return None
    stamp.unlink(missing_ok=True)
    print(f"installing {folder.name} (once)", file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no words"]
        return f"{command[0]} could not install {wanted.name}: {last[0]}"
    stamp.write_text(text, encoding="utf-8")
    return None


def make(environment: Environment) -> str | None:
    """Prepare it; the reason if that fails."""
    python = environment.folder / "bin" / "python"
    if not python.exists():
        shutil.rmtree(environment.folder, ignore_errors=True)
        command = [sys.executable, "-m", "venv", str(environment.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{' '.join(command[1:3])} failed: {(done.stdout + done.stderr).strip()}"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]
    return install(
        environment.folder, environment.requirements, [*pip, str(environment.requirements)]
    )


def make_node(tests: Sequence[Path]) -> str | None:
    """Install the packages for node if the tests need them; the reason if that fails. Without npm
    there is nothing to do: the tests skip."""
    npm, folder = shutil.which("npm"), PLACE / "node"
    if npm is None or CONTRACT / "test_node_clients.py" not in tests:
        return None
    wanted = CONTRACT / "node" / "package.json"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(wanted, folder)
    quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    return install(folder, wanted, [npm, "install", *quiet])


def run(environment: Environment, tests: Sequence[Path], more: Sequence[str]) -> list[Result]:
    """Run the tests with pytest. Its output goes to ours."""
    (packages,) = (environment.folder / "lib").glob("python3.*/site-packages")
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        command = [sys.executable, "-m", "pytest", "--slow", f"--junitxml={report}"]
        command += ["-o", "junit_family=xunit1", *more, *map(str, tests)]
        seen = {**os.environ, "PYTHONPATH": str(packages)}
        code = subprocess.run(command, env=seen, cwd=ROOT, check=False).returncode
        if code == NONE_FOUND:
            return []
        found = results(report.read_text(encoding="utf-8")) if report.exists() else []
    if code != 0 and not any(one.word == "failed" for one in found):
        found.append(Result(environment.name, "failed", f"pytest ended with {code}"))
    return found


def results(report: str) -> list[Result]:
    """Those of a report of pytest (JUnit's XML), one for each file."""
    files: dict[str, list[ElementTree.Element]] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        file = case.get("file") or case.get("name", "?").replace(".", "/") + ".py"
        files.setdefault(file, []).append(case)
    return [_result(file, cases) for file, cases in files.items()]


def _result(file: str, cases: Sequence[ElementTree.Element]) -> Result:
    skips = [case.find("skipped") for case in cases]
    reasons = sorted({skip.get("message", "") for skip in skips if skip is not None})
    failed = sum(
        case.find("failure") is not None or case.find("error") is not None for case in cases
    )
    skipped = sum(skip is not None for skip in skips)
    counts = {"passed": len(cases) - failed - skipped, "failed": failed, "skipped": skipped}
    word = "failed" if failed else "passed" if counts["passed"] else "skipped"
    details = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return Result(file, word, "; ".join([details, *reasons]))


def results_of(environment: Environment, names: list[Path], more: list[str]) -> list[Result]:
    """Make the environment and run those of its tests that are chosen."""
    tests = [test for test in environment.tests if chosen(names, test)]
    if environment.name in LARGE and not set(tests) & set(names):
        large = "its packages take gigabytes: name the file to run it"
        return [Result(str(test.relative_to(ROOT)), "skipped", large) for test in tests]
    reason = (make(environment) or make_node(tests)) if tests else None
    if reason is not None:
        return [Result(str(test.relative_to(ROOT)), "failed", reason) for test in tests]
    return run(environment, tests, more) if tests else []


def main(arguments: Sequence[str]) -> int:
    """The exit status: 0 if something ran and nothing failed."""
    names, more = split(arguments)
    PLACE.mkdir(exist_ok=True)
    with (PLACE / "lock").open("w", encoding="utf-8") as alone:
        try:  # two runs must not install into the same folder
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("contract: another run is going on here", file=sys.stderr)
            return 1
        found = [one for each in environments() for one in results_of(each, names, more)]
    for result in sorted(found, key=lambda one: (one.word, one.file)):
        print(f"contract: {result.word:7} {result.file}: {result.details}")
    return 0 if {one.word for one in found} in ({"passed"}, {"passed", "skipped"}) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
