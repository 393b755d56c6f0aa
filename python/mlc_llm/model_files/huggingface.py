"""A Hugging Face folder: what the model is, and its tensors under GGUF's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.folder_tensors import named_tensors
from mlc_llm.models.registry import architecture_of, read_config
from mlc_llm.models.weight_plan import WeightPlan, plan_gguf, wanted_tensors

HEAD = "output.weight"


def plan_folder(
    config: Mapping[str, object], tensors: Mapping[str, Tensor]
) -> tuple[WeightPlan, dict[str, Tensor]]:
    """The plan of a model and its tensors by GGUF's names. No weight is read.

    config: what config.json says. tensors: by the names of the folder. A head of its own is used
    even if the config says that it is tied, as Transformers does. Raises UnsupportedModel or
    ModelFileError naming the field or the tensor at fault.
    """
    names, spec = architecture_of(config).names, read_config(config)
    if spec.tied_head and names.origins[HEAD] in tensors:
        spec = replace(spec, tied_head=False)
    found = named_tensors(wanted_tensors(spec), names, tensors)
    return plan_gguf(spec, found), found
