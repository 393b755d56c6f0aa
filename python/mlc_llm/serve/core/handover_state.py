"""What a request with `disagg_config` wants. See `handover.py`."""

from __future__ import annotations

from mlc_llm.record import record
from mlc_llm.runtime.transfer import Transfer


@record()
class Handover:
    """What a request wants, with places in its prompt instead of a window."""

    kind: str
    begin: int
    """Tokens that the engine of the answer has, or gets."""
    end: int
    """Tokens that `prepare_receive` and `remote_send` are about."""
    transfer: Transfer | None = None
    refused: str | None = None
    """Why the pages that came with it cannot be used."""

    @property
    def sends(self) -> bool:
        """Its prompt is computed for another engine, and there is no answer."""
        return self.kind == "remote_send"

    @property
    def is_question(self) -> bool:
        """Nothing is computed for it."""
        return self.kind == "prepare_receive"

    @property
    def has_news(self) -> bool:
        """The other engine lacks some of it."""
        return self.sends and self.begin < self.end
