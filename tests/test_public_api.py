"""The import paths that callers may rely on, and those that are still to come.

A name that is still to come must fail to import: whoever builds it moves it to BUILT.
"""

from __future__ import annotations

import importlib

import pytest

BUILT = {
    "mlc_llm": ["__version__", "MLCEngine", "AsyncMLCEngine"],
    "mlc_llm.serve": [
        "data",
        "Request",
        "RequestStreamOutput",
        "EngineConfig",
        "engine_utils",
        "PagedRadixTree",
        "MLCEngine",
        "AsyncMLCEngine",
        "PopenServer",
    ],
    "mlc_llm.serve.engine": ["MLCEngine"],
    "mlc_llm.serve.async_engine": ["AsyncMLCEngine"],
    "mlc_llm.serve.sync_engine": ["SyncMLCEngine", "EngineConfig", "_create_tvm_module"],
    "mlc_llm.serve.threaded_engine": ["ThreadedEngine", "InstructionKind"],
    "mlc_llm.json_ffi": ["JSONFFIEngine"],
    "mlc_llm.json_ffi.engine": [
        "JSONFFIEngine",
        "EngineState",
        "BackgroundLoops",
        "Completions",
        "Chat",
    ],
    "mlc_llm.serve.engine_base": [
        "EngineConfig",
        "EngineMetrics",
        "_check_engine_config",
        "_parse_models",
        "_process_model_args",
        "_query_engine_metrics",
        "detect_device",
    ],
    "mlc_llm.serve.event_trace_recorder": ["EventTraceRecorder"],
    "mlc_llm.serve.data": ["Data", "TextData", "TokenData", "ImageData"],
    "mlc_llm.protocol": ["openai_api_protocol", "debug_protocol"],
    "mlc_llm.protocol.generation_config": ["GenerationConfig"],
    "mlc_llm.protocol.error_protocol": ["BadRequestError"],
    "mlc_llm.protocol.conversation_protocol": ["Conversation", "MessagePlaceholders"],
    "mlc_llm.protocol.openai_api_protocol": [
        "CHAT_COMPLETION_MAX_TOP_LOGPROBS",
        "COMPLETION_MAX_TOP_LOGPROBS",
    ],
    "mlc_llm.conversation_template": ["ConvTemplateRegistry"],
    "mlc_llm.tokenizers": ["Tokenizer", "TextStreamer", "StopStrHandler"],
    "mlc_llm.quantization": ["QUANTIZATION"],
    "mlc_llm.model": ["MODELS"],
}

METHODS = {
    "mlc_llm.conversation_template:ConvTemplateRegistry": [
        "get_conv_template",
        "register_conv_template",
    ],
    "mlc_llm.protocol.conversation_protocol:Conversation": [
        "as_prompt",
        "from_json_dict",
        "to_json_dict",
    ],
    "mlc_llm.serve:PagedRadixTree": [
        *("add", "extend", "fork", "free_capacity", "get", "get_length", "has", "match"),
        *("remove", "reset", "rollback"),
    ],
}
"""Methods that public tests call, by module and class."""

TO_COME: dict[str, list[str]] = {}

TVM_FUNCTIONS_BUILT = {
    "mlc.serve.create_engine": "mlc_llm.serve.sync_engine",
    "mlc.serve.create_threaded_engine": "mlc_llm.serve.threaded_engine",
    "mlc.json_ffi.CreateJSONFFIEngine": "mlc_llm.json_ffi",
}
"""Name -> the module that registers it."""


def pairs(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(module, name) for module, names in table.items() for name in names]


def found(module: str, name: str) -> bool:
    """`from module import name` works (a submodule counts)."""
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{module}.{name}".startswith(missing):
            raise  # something else is missing: that is another mistake
        return False
    return True


@pytest.mark.parametrize(("module", "name"), pairs(BUILT))
def test_can_be_imported(module: str, name: str) -> None:
    assert found(module, name)


@pytest.mark.parametrize(("place", "method"), pairs(METHODS))
def test_has_the_method(place: str, method: str) -> None:
    module, name = place.split(":")
    assert callable(getattr(getattr(importlib.import_module(module), name), method))


@pytest.mark.parametrize(("module", "name"), pairs(TO_COME))
def test_is_still_to_come(module: str, name: str) -> None:
    assert not found(module, name), "built now: move it to BUILT"


def test_tvm_functions() -> None:
    import tvm_ffi

    for module in TVM_FUNCTIONS_BUILT.values():
        importlib.import_module(module)
    found = [tvm_ffi.get_global_func(name, allow_missing=True) for name in TVM_FUNCTIONS_BUILT]
    assert None not in found
