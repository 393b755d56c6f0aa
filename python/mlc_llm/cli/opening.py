"""Opens a model for a command. The reading of its weights begins before the engine is imported."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mlc_llm.cli.early import begin_early
from mlc_llm.cli.flags import naming_flags
from mlc_llm.runtime.packed_file import map_packed
from mlc_llm.runtime.read_ahead import ReadAhead

if TYPE_CHECKING:
    from mlc_llm.cli.session import Session
    from mlc_llm.serve.config import EngineConfig
    from mlc_llm.serve.data import RequestStreamOutput


def open_session(
    model: str | None, device: str, config: EngineConfig, adapter: str = "", *, once: bool = False
) -> Session:
    """Open the model that was named (None: the default one) on an engine of its own. adapter: the
    name of the one that its answers have. once: it gives one answer, which shall begin soon.

    Raises `UserError` for a model or a config that cannot be used, naming the flag.
    """
    started = time.perf_counter()
    with ReadAhead(map_packed if once else None) as reading, naming_flags():
        is_whole = config.tensor_parallel_shards in (None, 1)
        if is_whole and config.quantization is None and config.rope_scaling is None:
            begin_early(reading, model, config.kernels, device)
        import mlc_llm.support.light_tvm  # noqa: F401

        # While the weights are read. The engine loads TVM, which `--help` does not need.
        from mlc_llm.cli.session import Session
        from mlc_llm.serve.sync_engine import SyncMLCEngine

        outputs: list[RequestStreamOutput] = []
        engine = SyncMLCEngine(
            model,
            device,
            mode=config.mode or "local",
            model_lib=config.model_lib,
            engine_config=config,
            request_stream_callback=outputs.extend,
            reading=reading,
        )
    load_s = time.perf_counter() - started
    window = engine.longest_sequence
    return Session(engine, engine.bundle, outputs, window=window, load_s=load_s, adapter=adapter)
