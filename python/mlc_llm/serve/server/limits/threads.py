"""Threads for what would hold up the event loop."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

PREPARING = ThreadPoolExecutor(8, "mlc-prepare")
"""Templates, tokens and grammars are made here, and large answers built. More at a time would only
share the cores."""
