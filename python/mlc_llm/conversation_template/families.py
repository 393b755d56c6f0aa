"""All named conversation templates. Their texts are those of the makers of the models.

Where a model has a chat template of its own, a test compares the two.
"""

from __future__ import annotations

from mlc_llm.conversation_template.families_chatml import CHATML
from mlc_llm.conversation_template.families_inst import INST
from mlc_llm.conversation_template.families_plain import PLAIN
from mlc_llm.conversation_template.families_tagged import TAGGED

FAMILIES = [*CHATML, *INST, *TAGGED, *PLAIN]
