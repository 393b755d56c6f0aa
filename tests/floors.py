"""The floors of the house: what each part of the package may import. See `test_architecture.py`."""

from __future__ import annotations

CONTRACTS = {
    "serve.data",
    "serve.config",
    "serve.config_fields",
    "serve.request",
    "serve.limits",
    "serve.memory_plan",
    "serve.metrics",
    "serve.counters",
    "serve.precision_costs",
    "serve.prometheus",
    "serve.histogram",
    "serve.serving_metrics",
    "serve.serving_page",
    "serve.event_trace_recorder",
    "serve.echo_model",
    "serve.kv_events.settings",
}
"""Plain values of `serve` that every layer of it may read."""

GROUND = {
    *{
        "errors",
        "json_file",
        "plain_file",
        "later_numpy",
        "library.adapter_format",
        "library.page_format",
        "library.state_format",
        "library.workspace_info",
        "pooling",
    },
    *{"precision", "ranking", "record"},
}
CORE = {*GROUND, *CONTRACTS, "serve.core", "runtime.batch", "runtime.limits", "runtime.decode_rows"}
CORE |= {"tokenizers", "protocol", "images", "runtime.transfer", "runtime.transfer_bytes"}
SPECS = {f"models.{one}" for one in ("attention_spec", "image_spec", "network_spec", "spec")}
SPECS |= {"models.recurrent"}
"""What a decoder is, as plain numbers."""
BACKENDS = {f"backends.{one}" for one in ("base", "device", "operands", "ops", "ranks", "registry")}
"""What others know of the backends. Which one computes is decided in the registry alone."""
SHAPES = {"backends.cpu.isa", "backends.cpu.formats"}
"""Plain values that CPU kernels are shaped by."""
GPU_SHAPES = {"backends.cuda.formats"}
"""The same of GPU kernels."""
KERNELS = {
    *GROUND,
    *(f"kernels.{name}" for name in ("arguments", "heads", "page_bytes", "row_kinds", "types")),
    "kernels.expressions",
    "kernels.tvm_patches",
}
"""What all kernels share."""
DEVICE = {
    *GROUND,
    "backends.all_reduce",
    "backends.base",
    "backends.closures",
    "backends.device",
    "backends.features",
    "backends.needless_calls",
    "backends.operands",
    "backends.ops",
    "backends.plain_rows",
    "backends.ranks",
    "library",
    *SPECS,
}
DEVICE |= {"quantization", "support"}
"""What a backend stands on."""
COMPILER = {
    *GROUND,
    *BACKENDS,
    "library",
    "protocol",
    "support",
    "tokenizers",
    "conversation_template",
    "quantization",
    "models",
    *SPECS,
    "loader",
    "model_files",
}
BUNDLE = {f"serve.opening.{name}" for name in ("bundle", "header_cache", "settings", "chat_config")}
"""The files that open a model before anything is compiled."""
OPENS_A_BUNDLE = {
    *GROUND,
    *BUNDLE,
    "serve.echo_model",
    "images",
    "support",
    "loader",
    "protocol",
    "tokenizers",
    "conversation_template",
    "models",
    *SPECS,
    "model_files",
}
APIS = {"serve.anthropic", "serve.ollama", "serve.responses"}
"""Other APIs, as translations to and from OpenAI's."""
OPENING = {*COMPILER, *CORE, *BUNDLE, "serve.core.speculation", "compiler", "runtime"}
OPENING |= {"serve.kv_events"}
SERVE = {*OPENING, "serve.opening", "serve.openai", "serve.stream", "serve.streams", "serve", ""}
HTTP = {*GROUND, "protocol", "serve.server.errors", "serve.server.notes"}
"""What every room of the server stands on."""

MAY_IMPORT: dict[str, set[str]] = {
    "": {*GROUND, "serve", "without_torch"},
    "errors": set(),
    "json_file": {"errors", "plain_file"},
    "plain_file": set(),
    "later_numpy": set(),
    "record": set(),
    "pooling": set(),
    "precision": set(),
    "ranking": {"later_numpy", "record"},
    "without_torch": set(),
    "library": GROUND,
    "library.adapter_format": set(),
    "library.page_format": set(),
    "library.state_format": set(),
    "library.workspace_info": {"record"},
    "protocol": GROUND,
    "tokenizers": GROUND,
    "support": GROUND,
    "loader": GROUND,
    "images": GROUND,
    "kernels": KERNELS,
    "kernels.arguments": set(),
    "kernels.heads": {"record"},
    "kernels.page_bytes": {"kernels.types", "library.page_format"},
    "kernels.row_kinds": {"kernels.types", "record"},
    "kernels.expressions": set(),
    "kernels.tvm_patches": {"kernels.expressions"},
    "kernels.types": set(),
    "kernels.cpu": {*KERNELS, *SHAPES},
    "kernels.cuda": {*KERNELS, *GPU_SHAPES},
    "conversation_template": {*GROUND, "protocol"},
    "quantization": GROUND,
    "model": {"models"},
    "models": {
        *GROUND,
        "backends.operands",
        "backends.ops",
        "models.encoder_spec",
        "models.heads_spec",
        *SPECS,
    },
    "backends": set(),
    "backends.all_reduce": {"library"},
    "backends.closures": set(),
    "backends.needless_calls": set(),
    "backends.operands": {"record"},
    "backends.ops": {"backends.operands", "backends.state_ops", *SPECS},
    "backends.state_ops": {"backends.operands", "models.recurrent"},
    "backends.plain_rows": SPECS,
    "backends.ranks": GROUND,
    "backends.device": {"backends.ranks", "support"},
    "backends.base": {*GROUND, "backends.device", "backends.ops", "models.spec", "quantization"},
    "backends.features": {*GROUND, "backends.base", *SPECS},
    "backends.registry": {
        *GROUND,
        *SHAPES,
        *("backends.base", "backends.cpu", "backends.cuda", "backends.reference"),
    },
    "backends.cpu": {*DEVICE, *SHAPES, *KERNELS, "kernels.cpu"},
    "backends.cpu.k_searches": {*GROUND, "kernels.cpu", "quantization", "support"},
    **dict.fromkeys((*SHAPES, *GPU_SHAPES), GROUND),
    "backends.cuda": {*DEVICE, *GPU_SHAPES, *KERNELS, "backends.cpu", "kernels.cuda"},
    "backends.reference": {*DEVICE, "kernels", "backends.cpu"},
    "models.recurrent": GROUND,
    "models.encoder_spec": GROUND,
    "models.heads_spec": GROUND,
    "models.image_spec": GROUND,
    "models.attention_spec": GROUND,
    "models.network_spec": GROUND,
    "models.spec": {*GROUND, *SPECS, "models.encoder_spec", "models.heads_spec"},
    "model_files": {
        *GROUND,
        "loader",
        "models",
        *SPECS,
        "quantization",
        "tokenizers",
        "conversation_template",
        "protocol",
    },
    "conversion": {
        *GROUND,
        "support",
        "protocol",
        "conversation_template",
        "tokenizers",
        "quantization",
        "loader",
        "models",
        *SPECS,
        "model_files",
        "backends.cpu.k_searches",
    },
    "conversion.importance": {*GROUND, "loader", "models", "quantization"},
    "conversion.calibration": {
        *GROUND,
        "conversion.importance",
        *BACKENDS,
        "backends.cpu",
        "compiler",
        "library",
        "model_files",
        "models",
        "runtime",
        "support",
    },
    "compiler": COMPILER,
    "runtime": {
        *GROUND,
        *BACKENDS,
        *("runtime.batch", "runtime.decode_rows", "runtime.limits", "runtime.transfer"),
        *("library", "protocol", "support"),
    },
    "runtime.batch": {*GROUND, "runtime.limits", "runtime.transfer"},
    "runtime.limits": GROUND,
    "runtime.decode_rows": {*GROUND, "runtime.batch"},
    "runtime.transfer": GROUND,
    "runtime.transfer_bytes": {*GROUND, "runtime.transfer"},
    **{contract: {*GROUND, "protocol", *CONTRACTS} for contract in CONTRACTS},
    "serve.data": {*GROUND, "protocol", "images"},
    "serve.limits": {*GROUND, "protocol", *CONTRACTS, "runtime.limits"},
    "serve.core": {*CORE, "serve.core.grammar", "serve.core.speculation"},
    "serve.core.grammar": {*GROUND, "protocol", "tokenizers"},
    "serve.core.speculation": {*CORE, "serve.core.grammar"},
    "serve.kv_events": {*GROUND, *CONTRACTS},
    "serve.opening": OPENING,
    **dict.fromkeys(BUNDLE, OPENS_A_BUNDLE),
    "serve.stream": {*GROUND, *CONTRACTS, "protocol", "tokenizers"},
    "serve.streams": GROUND,
    "serve.openai": {
        *GROUND,
        *CONTRACTS,
        "protocol",
        "tokenizers",
        "conversation_template",
        "images",
        "serve.stream",
    },
    **{api: {*GROUND, *CONTRACTS, "protocol", "serve.openai"} for api in APIS},
    "serve": SERVE,
    "serve.server.notes": {*CONTRACTS, "serve.openai"},
    "serve.server.errors": {*HTTP, *APIS},
    "serve.server.limits": HTTP,
    "serve.server.streams": {*HTTP, *CONTRACTS, "serve", "serve.openai", "serve.server.limits"},
    "serve.server.pool": {
        *HTTP,
        *CONTRACTS,
        *BUNDLE,
        *("serve", "serve.opening", "support"),
        *("serve.server.limits", "serve.server.streams"),
    },
    "serve.server.calls": {
        *HTTP,
        *("serve", "serve.openai"),
        *("serve.server.limits", "serve.server.streams", "serve.server.pool"),
    },
    "serve.server.routes": {
        *SERVE,
        *APIS,
        *HTTP,
        *("serve.server.limits", "serve.server.streams", "serve.server.pool"),
        "serve.server.calls",
    },
    "serve.server": {
        *HTTP,
        "support",
        *("serve.server.limits", "serve.server.pool", "serve.server.calls", "serve.server.routes"),
    },
    "json_ffi": {*SERVE, "json_ffi"},
    "testing": {*SERVE, "testing"},
    "bench": {"record"},
    "cli": {
        *SERVE,
        *("serve.server", "serve.server.limits", "serve.server.notes"),
        *("serve.server.pool", "serve.server.calls"),
        *("json_ffi", "cli", "backends.cpu", "backends.cuda", "bench", "ray"),
        *("conversion", "conversion.calibration", "conversion.importance"),
    },
    "ray": {
        *SERVE,
        *("ray", "serve.kv_events", "serve.server", "serve.server.limits", "serve.server.pool"),
        "serve.server.calls",
    },
    "__main__": {"cli"},
}
"""Part of the package -> parts it may import besides itself. The longest name that fits counts,
on both sides, so a line for `serve.core` is not covered by one for `serve`. "" is the root."""
