"""Memory that a library's functions ask the runtime for."""

from __future__ import annotations

from mlc_llm.record import record


@record()
class WorkspaceInfo:
    """Of one tensor, uint8 [bytes], for what a function computes."""

    unit_bytes: int
    """That a token of a step takes, or a row of logits."""
    of_rows: bool
    """It holds rows of logits, and not tokens."""
    fixed_bytes: int = 0
    """That it takes beside these."""
