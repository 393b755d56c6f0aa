"""Tiers of tests, and the default model for those that need it."""

from __future__ import annotations

import gc
import logging
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import kept
import pytest
from hypothesis import HealthCheck, settings
from kept_libraries import libraries_are_kept
from tiny_models import TinyModels

from mlc_llm.support.logging import ACCESS, LOGGER_NAME

# A machine with neighbours is slow at times. That says nothing of what is tested.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", PATIENT, max_examples=30)
settings.register_profile("thorough", PATIENT, max_examples=300)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow tests too")
    parser.addoption("--cuda", action="store_true", help="run the tests marked `cuda` too")
    parser.addoption("--gpu", action="store_true", help="run the tests marked `gpu` too")
    parser.addoption(
        "--tier",
        choices=("together", "alone"),
        help="run only what may run beside other tests, or only the rest (marked `timing`)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # so a shell starts what ends with "&"
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--hypothesis-profile") is None:
        settings.load_profile("thorough" if config.getoption("--slow") else "quick")
    kept.configure(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    return None if config.getoption("--slow") else "slow tests are left out; --slow runs them too"


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # of pytest-xdist, whose workers come and go before this
        kept.prune_all()


def _thin(items: list[pytest.Item]) -> None:
    """Marks tests with `one_of(n)` as slow, but for one of n. Which one it is moves on by one after
    n of them: else it could be the same value of the last parameter each time."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("one_of")
        if mark is None or "slow" in item.keywords:
            continue
        (n,), test = mark.args, item.nodeid.partition("[")[0]
        number = seen[test]
        seen[test] += 1
        if (number + number // n) % n:
            item.add_marker(pytest.mark.slow)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The tests that run alone are in few files: the others need not be imported."""
    if config.getoption("--tier") != "alone" or not collection_path.name.startswith("test_"):
        return None
    is_file = collection_path.suffix == ".py"
    return True if is_file and "mark.timing" not in collection_path.read_text() else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("--tier")
    wanted = [one for one in items if tier is None or _tier(one) == tier]
    if not config.getoption("--slow"):
        _thin(wanted)
    left_out = [name for name in ("slow", "cuda", "gpu") if not config.getoption(f"--{name}")]
    wanted = [one for one in wanted if not any(one.get_closest_marker(name) for name in left_out)]
    kept = set(wanted)
    config.hook.pytest_deselected(items=[one for one in items if one not in kept])
    items[:] = wanted


def _tier(item: pytest.Item) -> str:
    return "alone" if "timing" in item.keywords else "together"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Engines collect garbage when they end. What pytest itself has made is none, and looking
    through all of it, again and again while there is more of it, takes longer than most tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def kept_libraries() -> Iterator[None]:
    """What engines compile is kept from one run to the next, wherever MLC_LLM_HOME is."""
    with libraries_are_kept():
        yield


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    """A test that runs a command in this process sets up the package's log, as the command does."""
    loggers = [logging.getLogger(name) for name in (LOGGER_NAME, ACCESS)]
    before = [(one.handlers[:], one.propagate, one.level) for one in loggers]
    yield
    for one, (handlers, propagate, level) in zip(loggers, before, strict=True):
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """Tiny models by name; each library is compiled once for all runs."""
    return TinyModels(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's file, downloaded if this is the first time. For tests marked `model`."""
    from mlc_llm.support.model_source import default_model_path

    return default_model_path()
