"""What every route begins with: a body that was read and checked, its order, and its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from starlette.requests import Request

from mlc_llm.protocol.base import AnswerModel
from mlc_llm.record import record
from mlc_llm.serve.server.calls.context import ServedModel, context_of, served_model
from mlc_llm.serve.server.errors import HTTPError
from mlc_llm.serve.server.limits.order import Order, order_of
from mlc_llm.serve.server.notes.note import current_note

IGNORED_HEADER = "x-ignored-params"
MOST_SHOWN = 1000
"""Characters of the names of fields."""
BodyT = TypeVar("BodyT", bound=AnswerModel)


@record()
class Read(Generic[BodyT]):
    """A request whose body was read and checked."""

    request: Request
    body: BodyT
    size: int
    """Bytes of the body."""

    async def with_model(self, name: str | None) -> Asked[BodyT]:
        """The model of this name is opened if it is not. Raises `InvalidField` for a wrong order,
        and what `served_model` raises."""
        order = order_of(self.request, self.body)
        served = await served_model(self.request, name)
        return Asked(self.request, self.body, self.size, order, served)


@record()
class Asked(Read[BodyT]):
    """A request that is understood, and whose model is open."""

    order: Order
    served: ServedModel

    def ignoring(self, names: Sequence[str]) -> dict[str, str]:
        """A header that names the fields without effect, so that nobody is misled; the log counts
        them. Raises `HTTPError` if the server refuses such fields."""
        if not names:
            return {}
        shown = ",".join(name for name in names if name.isascii() and name.isprintable())
        shown = shown[:MOST_SHOWN]
        if self.served.settings.strict_params:
            words = f"fields without effect, which this server refuses: {shown}"
            raise HTTPError(400, words, param=names[0][:MOST_SHOWN], code="ignored_params")
        current_note().ignored = len(names)
        return {IGNORED_HEADER: shown}


async def read(request: Request, kind: type[BodyT]) -> Read[BodyT]:
    """The request with its body. Raises `HTTPError`, `UserError`."""
    context = context_of(request)
    data = await context.bodies.json_text(request)
    body = kind.parse_text(data)
    context.check_debug(body)
    return Read(request, body, len(data))
