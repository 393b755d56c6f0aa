"""Whether an engine reads images, and which file makes it see. A model without one loads nothing
of what towers need."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from mlc_llm.errors import InvalidField, MLCError, UserError
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.config_fields import NO_MMPROJ
from mlc_llm.serve.limits import window_of
from mlc_llm.serve.opening.bundle import ModelBundle, Vision
from mlc_llm.support.gguf_parts import is_tower

_log = logging.getLogger(__name__)


def with_vision(bundle: ModelBundle, config: EngineConfig) -> ModelBundle:
    """The bundle with its tower, if the config names one, the folder has one or a single `mmproj`
    file that fits lies beside the model's file.

    Raises UserError with the name of the file at fault, if the config names it.
    """
    asked = config.mmproj
    if asked == NO_MMPROJ or bundle.files is None or bundle.is_encoder or bundle.is_medusa:
        return _refused(bundle, asked)
    reason = _contradiction(config, bundle)
    if asked is not None:
        if reason is not None:
            raise InvalidField("mmproj", asked, reason)
        from mlc_llm.serve.opening.towers import of_file

        return replace(bundle, vision=of_file(Path(asked).expanduser(), bundle, config))
    try:
        found = None if reason is not None else _found(bundle, config)
    except (UserError, MLCError) as error:
        _log.info("%s reads no images: %s", bundle.name, error)
        return bundle
    return replace(bundle, vision=found)


def _refused(bundle: ModelBundle, asked: str | None) -> ModelBundle:
    """A model without a place for images. Raises InvalidField if a file is given for them."""
    if asked not in (None, NO_MMPROJ):
        raise InvalidField("mmproj", asked, f"{bundle.name} writes no text, and reads no images")
    return bundle


def _contradiction(config: EngineConfig, bundle: ModelBundle) -> str | None:
    """Why an engine of this config reads no images."""
    is_windowed = window_of(config) is not None or (
        config.sliding_window_size is None and bundle.sliding_window > 0
    )
    one_out = "leave one of the two out"
    reasons = (
        (
            config.model_lib is not None,
            "a library that `compile` has made (model_lib) takes no images",
        ),
        (config.speculative_mode == "eagle", "a model with an EAGLE head reads no images"),
        (
            config.tensor_parallel_shards not in (None, 1),
            "a model that several ranks compute reads no images",
        ),
        (
            bool(config.adapters or config.max_adapters),
            "an engine that reads images takes no adapters",
        ),
        (is_windowed, "an engine that reads images has no sliding window"),
    )
    return next((f"{words}; {one_out}" for holds, words in reasons if holds), None)


def _found(bundle: ModelBundle, config: EngineConfig) -> Vision | None:
    """What nobody has named. Raises what is wrong with it."""
    assert bundle.files is not None
    path = bundle.files.path
    if path.is_dir():
        from mlc_llm.serve.opening.towers import of_folder

        return of_folder(path, bundle, config)
    towers = [one for one in sorted(path.parent.glob("*.gguf")) if is_tower(one.name)]
    if len(towers) > 1:
        names = ", ".join(one.name for one in towers[:5])
        raise UserError(f"several mmproj files lie beside it ({names}); name one")
    if not towers:
        return None
    from mlc_llm.serve.opening.towers import of_file

    return of_file(towers[0], bundle, config)
