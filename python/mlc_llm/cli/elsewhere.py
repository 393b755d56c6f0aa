"""What Ollama, vLLM and llama.cpp call our commands and options, where the name is another one."""

COMMANDS = {
    "run": "chat",
    "complete": "generate",
    "show": "fit",
    "rm": "remove",
    "download": "pull",
    "create": "convert_weight",
    "quantize": "convert_weight",
}
OPTIONS = {
    "max-model-len": "context",
    "ctx-size": "context",
    "num-ctx": "context",
    "n-predict": "max-tokens",
    "system-prompt": "system",
    "json-schema": "schema",
    "format": "schema",
    "verbose": "stats",
    "hf-repo": "model",
    "enable-lora": "adapter",
    "lora": "adapter",
    "lora-modules": "adapter",
    "task": "pooling",
    "max-num-seqs": "overrides",
    "max-num-batched-tokens": "overrides",
    "gpu-memory-utilization": "memory",
    "keepalive": "keep-model",
    "alias": "served-model-name",
    "allowed-origins": "cors-origin",
    "ssl-certfile": "tls-cert",
    "ssl-keyfile": "tls-key",
    "uds": "unix-socket",
}
"""Without the dashes."""
