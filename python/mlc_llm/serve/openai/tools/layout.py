"""Formats in which the arguments of a call are one JSON object: fixed texts stand around names and
arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mlc_llm.record import record
from mlc_llm.serve.openai.tools.matching import NUMBER


@record()
class CallLayout:
    """The texts around names and arguments. Readers take any white space where these have some,
    and where they have none. `NUMBER` in one of them is the number of the call."""

    mark: str
    """What the first call begins with. Text of the model stands before it, and nothing of it."""
    first: str
    """Between the mark and the name."""
    middle: str
    """Between the name and the arguments."""
    last: str
    """Behind the arguments."""
    again: str = ""
    """Between two calls, up to the name of the second. Empty: there is only one call."""
    close: str = ""
    """Behind the last call."""
    opens: str = ""
    """What arguments, or the text behind them, begin with, where `middle` is only white space."""
    only_at_start: bool = False
    """An answer that does not begin with the mark has no calls."""

    def spelled(self, name: str) -> str:
        """A name as it is written in a call."""
        inside_json = self.middle.lstrip().startswith(('", "', '",\n', '": '))
        return json.dumps(name)[1:-1] if inside_json else name

    def written(self, calls: Sequence[tuple[str, str]]) -> str:
        """Calls as the model writes them. calls: names, and arguments as JSON."""
        return self.joined([(self.spelled(name), arguments) for name, arguments in calls])

    def joined(self, calls: Sequence[tuple[str, str]]) -> str:
        """Calls in a row. calls: names and arguments as they are written."""
        text = self.mark
        for i, (name, arguments) in enumerate(calls):
            lead = self.again if i else self.first
            text += f"{lead}{name}{self.middle}".replace(NUMBER, str(i)) + arguments + self.last
        return text + self.close
