"""Names that programs written for MLC LLM import from here. Each is defined in its own place."""

from __future__ import annotations

from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.metrics import EngineMetrics
from mlc_llm.serve.openai.engine_metrics import query_engine_metrics as _query_engine_metrics
from mlc_llm.serve.opening.arguments import check_engine_config as _check_engine_config
from mlc_llm.serve.opening.arguments import detect_device
from mlc_llm.serve.opening.bundle import ModelInfo
from mlc_llm.serve.opening.bundle import open_models as _process_model_args
from mlc_llm.serve.opening.bundle import parse_models as _parse_models

__all__ = [
    "EngineConfig",
    "EngineMetrics",
    "ModelInfo",
    "_check_engine_config",
    "_parse_models",
    "_process_model_args",
    "_query_engine_metrics",
    "detect_device",
]
