"""What the engine and the compiler know of a model's files, whichever format they have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.loader.tensor import Tensor
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.ranking import Ranking
from mlc_llm.tokenizers import Tokenizer


class ModelFiles(Protocol):
    """A model's opened files. Their headers are known to be sound; no weight was read."""

    @property
    def path(self) -> Path:
        """The model's first file, or its folder."""
        ...

    @property
    def opened(self) -> tuple[tuple[Path, os.stat_result], ...]:
        """All files that decide the weights, in order, each as it was when it was opened."""
        ...

    @property
    def quantization(self) -> str | None:
        """To what the matrices are quantised when they are read; None: they stay as they are."""
        ...

    @property
    def changes(self) -> str | None:
        """What is changed in the files when they are read, as a part of the name of the packed
        weights; None: nothing."""
        ...

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """By GGUF's names, as the plan has them."""
        ...

    @property
    def context_window(self) -> int:
        """Tokens that the model was trained for."""
        ...

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The end-of-text tokens that the header names, beside those that the tokenizer knows."""
        ...

    @property
    def pooling(self) -> str | None:
        """How the vectors of a text's tokens become one (see `model_files/pooling.py`); None: the
        files do not say it. Raises ModelFileError."""
        ...

    def ranking(self) -> Ranking | None:
        """How a decoder ranks documents; None: it does not. Reads a matrix of one or two rows.
        Raises ModelFileError, UnsupportedModel."""
        ...

    def check_sums(self) -> None:
        """Compare the files with the check sums that the model states, if it states any. Reads all
        bytes. Raises ModelFileError."""

    def plan(self) -> WeightPlan:
        """What the model is and which tensors it takes. Raises UnsupportedModel,
        ModelFileError."""
        ...

    def tokenizer(self) -> Tokenizer:
        """Raises what `Tokenizer` raises; UnsupportedModel if the model has none."""
        ...

    def chat_template(self, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template in the model's files; None: they have none. Raises ModelFileError."""
        ...
