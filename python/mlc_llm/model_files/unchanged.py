"""What model files say when there is nothing special about them; see `ModelFiles`."""

from __future__ import annotations

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.ranking import Ranking
from mlc_llm.tokenizers import Tokenizer


class UnchangedFiles:
    """Files that are read as they are, of a format without check sums."""

    @property
    def quantization(self) -> str | None:
        return None

    @property
    def changes(self) -> str | None:
        return None

    def check_sums(self) -> None:
        """There are none."""

    def ranking(self) -> Ranking | None:
        return None


class PlannedFiles(UnchangedFiles):
    """Files whose weights were planned when they were opened."""

    weights: WeightPlan

    @property
    def context_window(self) -> int:
        return self.weights.spec.context_window

    def plan(self) -> WeightPlan:
        return self.weights


class TextlessFiles(PlannedFiles):
    """Files of what reads and writes no text by itself."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return frozenset()

    @property
    def pooling(self) -> str | None:
        return None

    def tokenizer(self) -> Tokenizer:
        raise UnsupportedModel("a part of a model has no tokenizer: name the model")

    def chat_template(self, tokenizer: Tokenizer) -> ChatTemplate | None:
        return None
