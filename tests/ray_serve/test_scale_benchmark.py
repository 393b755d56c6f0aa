"""The simulation of `benchmarks/scale.py` runs, and prefix-aware routing is of use in it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PLACE = Path(__file__).parents[2] / "benchmarks" / "scale.py"


def scale() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale", PLACE)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["scale"] = found
    spec.loader.exec_module(found)
    return found


def test_prefix_aware_routing_is_nearly_as_good_as_knowing_all() -> None:
    module = scale()
    asks = module.load(200, 3.2, 1)
    found = {
        way: module.Simulation(4, 32, 2000.0, 0.05, way).run(asks)
        for way in ("power of two", "prefix", "all-knowing")
    }
    assert found["prefix"].hit >= 0.95 * found["all-knowing"].hit
    assert found["prefix"].p99_s <= 0.8 * found["power of two"].p99_s
