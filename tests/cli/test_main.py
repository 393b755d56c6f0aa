"""The table of commands: help, usage, the reference page; the program as a process."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlc_llm import __version__
from mlc_llm.cli import elsewhere
from mlc_llm.cli.__main__ import main
from mlc_llm.cli.commands import COMMANDS
from mlc_llm.cli.guard import USER_ERROR
from mlc_llm.cli.parser import build_parser, subparsers
from mlc_llm.cli.reference import render
from mlc_llm.cli.session import Session
from mlc_llm.errors import UserError

ROOT = Path(__file__).parent.parent.parent
NAMES = [command.name for command in COMMANDS]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(f" {command.name}" in out and command.summary in out for command in COMMANDS)
    assert "130" in out


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "--debug" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_is_explained(name: str) -> None:
    parser = subparsers(build_parser(NAMES))[name]
    assert [action.dest for action in parser._actions if not action.help] == []


@pytest.mark.parametrize("name", NAMES)
def test_help_has_more_than_the_default_and_names_all_choices(name: str) -> None:
    for action in subparsers(build_parser(NAMES))[name]._actions:
        words = str(action.help)
        assert not words.startswith("(default"), action.dest
        assert [one for one in action.choices or () if str(one) not in words] == [], action.dest


def test_the_reference_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == render()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "COMMAND"),
        (["nonsense"], "mlc_llm: error: there is no command 'nonsense' (see mlc_llm --help)"),
        (["generat", "x"], "there is no command 'generat'; did you mean generate?"),
        (["run", "llama3.2"], "there is no command 'run'; did you mean chat?"),
        (["create", "x"], "there is no command 'create'; did you mean convert_weight?"),
        (["serve", "--max-model-len=9"], "no option --max-model-len; did you mean --context?"),
        (["generate", "x", "--verbose"], "no option --verbose; did you mean --stats?"),
        (["serve", "--model", "a", "--model", "b"], "--model is given twice: give several models"),
        (["--quiet", "generate", "x"], "the command comes first, and --quiet after it"),
        (["generate", "--max-tokens", "many", "x"], "invalid int value"),
        (
            ["generate", "--temprature", "1", "x"],
            "mlc_llm generate: error: there is no option --temprature; did you mean --temperature? "
            "(see mlc_llm generate --help)",
        ),
        (["generate", "--temprature=1"], "there is no option --temprature; did you mean"),
        (["generate", "x", "--max", "1"], "there is no option --max; did you mean --max-tokens?"),
        (["chat", "--jsno"], "mlc_llm chat: error: there is no option --jsno (see mlc_llm chat"),
        (["doctor", "--jsno"], "there is no option --jsno; did you mean --json?"),
        (["generate", "why", "is"], "one argument too many: 'is'; a text with spaces needs quotes"),
        (["generate", "--regex", "a", "--schema", "f"], "not allowed with argument --regex"),
        (["serve", "--port=--"], "argument --port: invalid int value: '--'"),
    ],
)
def test_wrong_usage_is_one_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert words in err
    assert err.count("\n") == 1


def test_names_of_other_programs_lead_to_ours() -> None:
    parsers = subparsers(build_parser(NAMES))
    options = {flag for one in parsers.values() for flag in one._option_string_actions}
    assert set(elsewhere.COMMANDS.values()) <= set(NAMES)
    assert {f"--{name}" for name in elsewhere.OPTIONS.values()} <= options
    assert not set(elsewhere.COMMANDS) & set(NAMES)


def test_two_dashes_are_a_value_behind_an_equals_sign() -> None:
    parser = build_parser(["generate"])
    args = parser.parse_command(["generate", "--stop=--", "--system=--", "--", "--stop=--"])
    assert (args.stop, args.system, args.prompt) == (["--"], "--", "--stop=--")


def run(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "mlc_llm", *args]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=60)


def test_python_dash_m() -> None:
    done = run("--version")
    assert done.stdout.decode().split() == ["mlc_llm", __version__]


def test_a_mistake_needs_no_model() -> None:
    done = run("generate", stdin=b"\xff")
    assert done.returncode == 2
    assert b"not UTF-8" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_leaves_is_no_error() -> None:
    program = [sys.executable, "-m", "mlc_llm", "doctor"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_garbage_is_collected_again_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def note(session: Session, *_: object, **__: object) -> Any:
        seen.append(gc.isenabled())
        if len(seen) == 2:
            raise UserError("enough")
        return [1]

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    monkeypatch.setattr(Session, "raw_ids", note)
    monkeypatch.setattr(Session, "answer", note)
    assert main(["generate", "x", "--model", "mock://echo", "--raw"]) == USER_ERROR
    assert seen == [False, True]
    assert gc.isenabled()


def test_the_command_is_read_before_numpy_is_loaded() -> None:
    # It says how many threads NumPy makes, which is too late afterwards.
    code = "import sys, mlc_llm.cli.__main__; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_hosts_of_images_add_up() -> None:
    words = ["--allow-image-hosts", "a.example", "b.example", "--allow-image-hosts", "c.example"]
    args = build_parser(["serve"]).parse_args(["serve", *words])
    assert args.allow_image_hosts == ["a.example", "b.example", "c.example"]
