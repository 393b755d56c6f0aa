"""Chat templates: equal to Transformers', and stopped when they go too far."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from template_cases import RENDERED, TEMPLATES, conversations

from mlc_llm.conversation_template import ChatTemplate, sandbox
from mlc_llm.conversation_template.jinja import MAX_INPUT, MAX_SOURCE
from mlc_llm.errors import InvalidField, ModelFileError

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
HELLO = [{"role": "user", "content": "hello"}]
LIMIT = 0.3


@cache
def stored() -> dict[str, list[str | None]]:
    texts: dict[str, list[str | None]] = json.loads(RENDERED.read_text(encoding="utf-8"))["texts"]
    return texts


def rendered(template: ChatTemplate, conversation: dict[str, Any]) -> str | None:
    try:
        return template.render(**conversation)
    except InvalidField:
        return None


@pytest.mark.parametrize("name", TEMPLATES)
def test_equal_to_transformers(name: str) -> None:
    template = ChatTemplate(TEMPLATES[name], bos="<s>", eos="</s>")
    texts = [rendered(template, one) for one in conversations()]
    template.close()
    assert texts == stored()[name] and any(texts)


@pytest.mark.oracle
@pytest.mark.slow
def test_the_stored_texts_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Transformers' own
        pytest.importorskip("transformers")
        from oracle_tokenizer import oracle_renderings

        assert oracle_renderings() == stored()


# --- limits ----------------------------------------------------------------------------------

BOMBS = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{{ '' }}"
    "{% endfor %}{% endfor %}",
    "width of a format": "{{ '%1000000000d' % 1 }}",
    "width in a new-style format": "{{ '{:>4000000000}'.format(1) }}",
    "centred": "{{ messages[0].content | center(1000000000) }}",
    "repeated text": "{{ messages[0].content * 2000000000 }}",
    "repeated constant": "{{ 'a' * 3000000000 }}",
    "repeated list": "{{ ([0] * 999999999) | length }}",
    "great power": "{{ 9 ** (9 ** 9) }}",
    "shift by products": "{% set ns = namespace(x=9) %}{% for i in range(99) %}"
    "{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x > 1 }}",
    "doubling text": "{% set ns = namespace(x='ab') %}{% for i in range(64) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length }}",
    "long output": "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "endless macro": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "branching recursion": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}"
    "{% endmacro %}{{ f(64) }}",
    "recursive loop": "{% for i in [[[]]] recursive %}{{ loop(range(99999) | list) }}{% endfor %}",
    "products of lists": "{{ (range(99999) | batch(1) | list | string) * 9999 }}",
    "indented": "{{ ('a\n' * 9999999) | indent(9999) | length }}",
    "wrapped": "{{ ('a ' * 99999999) | wordwrap(1) | length }}",
    "replaced": "{{ ('a' * 99999).replace('a', 'b' * 99999) | length }}",
    "deep brackets": "{{ " + "(" * 100000 + "1" + ")" * 100000 + " }}",
    "deep blocks": "{% if 1 %}" * 9000 + "{% endif %}" * 9000,
    "sorted": "{% for i in range(99999) %}{{ (range(99999) | list | sort | reverse | list)[0] }}"
    "{% endfor %}",
    "joined": "{{ (['abcdefgh' * 99999] * 99999) | join(',') | length }}",
}


@pytest.fixture(scope="module")
def good() -> Iterator[ChatTemplate]:
    template = ChatTemplate(TEMPLATES["chatml"])
    yield template
    template.close()


@pytest.mark.timing
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_stopped_and_the_next_rendering_works(name: str, good: ChatTemplate) -> None:
    template = ChatTemplate(BOMBS[name], time_limit=LIMIT)
    started = time.monotonic()
    with pytest.raises(ModelFileError, match="chat template: ") as caught:
        template.render(HELLO)
    assert time.monotonic() - started < LIMIT + 30
    assert len(str(caught.value)) < 600
    assert good.render(HELLO).endswith("<|im_start|>assistant\n")
    template.close()


def test_the_same_template_works_after_it_was_stopped() -> None:
    source = "{% for i in range(messages[0].content | int) %}{% for j in range(999) %}"
    template = ChatTemplate(source + "{% endfor %}{% endfor %}done", time_limit=LIMIT)
    for _ in range(2):
        with pytest.raises(ModelFileError, match=re.escape("took more than 0.3 s")):
            template.render([{"role": "user", "content": "99999"}])
        assert template.render([{"role": "user", "content": "1"}]) == "done"
    template.close()


@pytest.mark.timing
def test_one_slow_rendering_does_not_hold_up_another_template(good: ChatTemplate) -> None:
    slow = ChatTemplate(BOMBS["nested loops"], time_limit=1.5)

    def stopped() -> None:
        with pytest.raises(ModelFileError):
            slow.render(HELLO)

    thread = threading.Thread(target=stopped)
    thread.start()
    done = 0
    while thread.is_alive():
        good.render(HELLO)
        done += 1
    assert done > 2, "one that waits for the slow one is the only one"


def test_renderings_in_many_threads_do_not_mix() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    wrong: list[str] = []

    def many(name: str) -> None:
        for i in range(50):
            text = template.render([{"role": "user", "content": f"{name} {i}"}])
            if text != f"{name} {i}":
                wrong.append(text)

    threads = [threading.Thread(target=many, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    template.close()
    assert wrong == []


@pytest.mark.skipif(os.name != "posix", reason="kills a process by a signal")
def test_a_worker_that_was_killed_is_replaced() -> None:
    template = ChatTemplate("{{ messages | length }}")
    assert template.render(HELLO) == "1"
    assert template._worker is not None
    os.kill(template._worker._process.pid, signal.SIGKILL)
    template._worker._process.wait()
    assert template.render(HELLO * 2) == "2"
    template.close()


def test_an_interrupted_rendering_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    template.render(HELLO)
    with monkeypatch.context() as patch:

        def interrupt(pipe: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(sandbox, "read_message", interrupt)
        with pytest.raises(KeyboardInterrupt):
            template.render([{"role": "user", "content": "secret of another"}])
    assert template.render(HELLO) == "hello"
    template.close()


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c_does_not_reach_the_process() -> None:
    template = ChatTemplate("x")
    template.render(HELLO)
    worker = template._worker
    assert worker is not None
    os.kill(worker._process.pid, signal.SIGINT)
    assert template.render(HELLO) == "x" and template._worker is worker
    template.close()


FORKS = """
import os, sys, threading
from mlc_llm.conversation_template import ChatTemplate, sandbox
template = ChatTemplate("{{ messages[0].content }}")
template.render([{"role": "user", "content": "first"}])
usual, at_work, forked = sandbox.read_message, threading.Event(), threading.Event()
def read_message(pipe):
    at_work.set()
    forked.wait()
    return usual(pipe)
sandbox.read_message = read_message
texts = []
render = lambda text: texts.append(template.render([{"role": "user", "content": text}]))
thread = threading.Thread(target=render, args=("parent",))
thread.start()
at_work.wait()
child = os.fork()
if child == 0:
    sandbox.read_message = usual
    render("child")
    sys.exit(0 if texts == ["child"] else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
forked.set()
thread.join()
print(status, texts, template.close())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_while_a_template_is_rendered_disturbs_neither_process() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKS],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0 ['parent'] None\n", "")


def test_the_process_ends_with_its_template() -> None:
    template = ChatTemplate("x")
    template.render(HELLO)
    assert template._worker is not None
    process = template._worker._process
    del template
    assert process.poll() is not None


@pytest.mark.timing
def test_the_process_starts_quickly() -> None:
    # Processor time, so that what else runs on the machine does not count.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(4):
        template = ChatTemplate("{{ messages | length }}")
        template.render(HELLO)
        template.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used / 4 < 0.3


def test_the_process_loads_little() -> None:
    source = Path(sandbox.__file__).read_text(encoding="utf-8")
    lines = re.findall(r"^(?:from|import) .*", source, re.MULTILINE)
    imported = {line.split()[1].split(".")[0] for line in lines}
    assert imported - sys.stdlib_module_names - {"__future__"} == {"jinja2"}


# --- what a template may and may not do ------------------------------------------------------

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ self.__init__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ messages[0].update(a=1) }}",
    "{{ messages.append.__self__ }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns }}",
    "{{ namespace(_x=1) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__}'.format(1) }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    template = ChatTemplate(source)
    try:
        shown = template.render(HELLO)
    except ModelFileError:
        shown = ""
    template.close()
    assert shown == ""


def test_a_template_changes_lists_of_its_own_alone() -> None:
    """That of Kimi K2 does. What it is given is a copy, each time."""
    template = ChatTemplate(
        "{% set a = [1] %}{% set _ = a.append(2) %}{% set _ = messages.append(3) %}"
        "{{ a.pop(0) }}{{ a }}{{ messages | length }}"
    )
    messages = list(HELLO)
    assert template.render(messages) == template.render(messages) == f"1[2]{len(HELLO) + 1}"
    template.close()
    assert messages == list(HELLO)


def test_errors_are_one_clear_line() -> None:
    for source, words in [
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ a.b.c }}", "UndefinedError: 'a' is undefined"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{% generation %}", "TemplateSyntaxError"),
    ]:
        template = ChatTemplate(source)
        with pytest.raises(ModelFileError, match=words) as caught:
            template.render(HELLO)
        assert "\n" not in str(caught.value)
        template.close()


def test_what_the_template_refuses_is_the_users_matter() -> None:
    template = ChatTemplate("{{ raise_exception('Only one message, please') }}")
    with pytest.raises(InvalidField, match="the model's chat template says: Only one message"):
        template.render(HELLO)
    template.close()


@pytest.mark.timing
def test_sizes_are_limited() -> None:
    with pytest.raises(ModelFileError, match="characters, more than"):
        ChatTemplate("x" * (MAX_SOURCE + 1))
    template = ChatTemplate("{{ messages[0].content }}")
    with pytest.raises(InvalidField, match="characters of text"):
        template.render([{"role": "user", "content": "x" * (MAX_INPUT + 1)}])
    nested: Any = "x"
    for _ in range(300):
        nested = [nested]
    for wrong in (nested, b"x", {1: 2}, 1 << 5000, object()):
        with pytest.raises(InvalidField):
            template.render([{"role": "user", "content": wrong}])
    assert template._worker is None
    large = "é" * (MAX_INPUT - 100)
    assert template.render([{"role": "user", "content": large}]) == large
    assert template.render([{"role": "user", "content": "\ud800"}]) == "\ud800"
    template.close()


def test_a_known_template_needs_no_process() -> None:
    source = TEMPLATES["chatml"].replace(
        "You help.", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    )
    other = ChatTemplate(source)
    other.render(HELLO)
    assert other._worker is not None  # almost the known one, but not the very same
    other.close()


def test_what_is_set_in_a_generation_ends_with_it() -> None:
    template = ChatTemplate(
        "{% set y = 'out' %}{% generation %}{% set x, y = 'in', 'in' %}{{ x }} {{ y }} "
        "{% endgeneration %}{{ x is defined }} {{ y }}"
        "{% for m in messages %}{% generation %} {{ m.content }} {{ loop.index }}"
        "{% endgeneration %}{% endfor %}"
    )
    assert template.render(HELLO) == "in in False out hello 1"
    template.close()
