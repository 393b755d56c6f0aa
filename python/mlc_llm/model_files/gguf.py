"""A model in a GGUF file, or in the parts of a split one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import UnsupportedModel
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.folder_texts import DEFAULT, TOOL_USE, with_tool_use
from mlc_llm.model_files.gguf_experts import with_stacks
from mlc_llm.model_files.pooling import gguf_pooling
from mlc_llm.model_files.ranking import GGUF_ROWS, gguf_ranking, ranks
from mlc_llm.model_files.unchanged import UnchangedFiles
from mlc_llm.models.registry import check_architecture, read_gguf
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.ranking import Ranking
from mlc_llm.record import record
from mlc_llm.tokenizers import Tokenizer

TEMPLATE_KEYS = {
    DEFAULT: "tokenizer.chat_template",
    TOOL_USE: f"tokenizer.chat_template.{TOOL_USE}",
}
"""The metadata keys of chat templates by their names."""
_TOKENS = {
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
    "sep_token": "tokenizer.ggml.seperator_token_id",  # the format's own spelling
    "cls_token": "tokenizer.ggml.cls_token_id",
    "mask_token": "tokenizer.ggml.mask_token_id",
}


@record()
class GGUFModel(UnchangedFiles):
    """See `ModelFiles`."""

    file: GGUFFile
    stop_token_ids: frozenset[int] = frozenset()
    """The tokenizer knows all of them."""
    changed: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors that others take the place of."""

    @classmethod
    def open(cls, path: Path | str) -> GGUFModel:
        """Raises what `GGUFFile.open` raises."""
        return cls(GGUFFile.open(path))

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def opened(self) -> tuple[tuple[Path, os.stat_result], ...]:
        return self.file.opened

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Raises ModelFileError for experts that do not fit together."""
        found = {**self.file.tensors, **self.changed}
        if self._ranks:
            del found[GGUF_ROWS]
        return with_stacks(found)

    @property
    def context_window(self) -> int:
        architecture = check_architecture(self.file.metadata)
        return self.file.get_int(f"{architecture}.context_length", low=1, high=2**31 - 1)

    @property
    def pooling(self) -> str | None:
        return gguf_pooling(self.file.metadata)

    def ranking(self) -> Ranking | None:
        if not self._ranks:
            return None
        return gguf_ranking(self.file.metadata, self.file.tensors, self._plan.spec.hidden)

    @cached_property
    def _ranks(self) -> bool:
        return ranks(self.file.metadata, self.file.tensors)

    def plan(self) -> WeightPlan:
        return self._plan

    @cached_property
    def _plan(self) -> WeightPlan:
        return read_gguf(self.file.metadata, self.tensors)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the file, or the one in tokenizer.json beside it."""
        if "tokenizer.ggml.model" in self.file.metadata:
            return Tokenizer.from_gguf_metadata(self.file.metadata)
        if (self.path.parent / "tokenizer.json").is_file():
            return Tokenizer(self.path.parent)
        raise UnsupportedModel(
            f"{self.path}: no tokenizer in the file, no tokenizer.json beside it"
        )

    def chat_template(self, tokenizer: Tokenizer) -> ChatTemplate | None:
        texts = {name: self.file.get_str(key, None) for name, key in TEMPLATE_KEYS.items()}
        sources = {name: text for name, text in texts.items() if text is not None}
        return with_tool_use(sources, self._token_texts(tokenizer))

    def _token_texts(self, tokenizer: Tokenizer) -> dict[str, str]:
        """What templates know of tokens: role -> text."""
        ids = {name: self.file.get_int(key, None) for name, key in _TOKENS.items()}
        ids["bos_token"] = tokenizer.bos_token_id
        texts = {one: text for text, one in tokenizer.special_tokens.items()}
        return {name: texts[one] for name, one in ids.items() if one in texts}
