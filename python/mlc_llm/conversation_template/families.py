"""All named conversation templates. Texts as the makers of the models state them.

A text that a model's own chat template gives is right, and a test compares it where there is one.
"""

from __future__ import annotations

from mlc_llm.conversation_template.families_chatml import CHATML
from mlc_llm.conversation_template.families_inst import INST
from mlc_llm.conversation_template.families_plain import PLAIN
from mlc_llm.conversation_template.families_tagged import TAGGED

FAMILIES = [*CHATML, *INST, *TAGGED, *PLAIN]
