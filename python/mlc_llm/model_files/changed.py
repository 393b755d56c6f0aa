"""A model's files of which something is changed when they are read."""

from __future__ import annotations

import os
from pathlib import Path

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.ranking import Ranking
from mlc_llm.record import record
from mlc_llm.tokenizers import Tokenizer


@record()
class ChangedFiles:
    """What stays as it is in `ModelFiles`, whatever is changed."""

    of: ModelFiles

    @property
    def path(self) -> Path:
        return self.of.path

    @property
    def opened(self) -> tuple[tuple[Path, os.stat_result], ...]:
        return self.of.opened

    @property
    def context_window(self) -> int:
        return self.of.context_window

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return self.of.stop_token_ids

    @property
    def pooling(self) -> str | None:
        return self.of.pooling

    def check_sums(self) -> None:
        self.of.check_sums()

    def ranking(self) -> Ranking | None:
        return self.of.ranking()

    def tokenizer(self) -> Tokenizer:
        return self.of.tokenizer()

    def chat_template(self, tokenizer: Tokenizer) -> ChatTemplate | None:
        return self.of.chat_template(tokenizer)
