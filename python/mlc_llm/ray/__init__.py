"""Replicas of models on Ray Serve, behind the routes of `mlc_llm serve`.

`mlc_llm.ray:build_app` is the `import_path` of an application of Ray Serve; `serve run`, `serve
deploy` and `mlc_llm serve --ray` take the same file. Needs `pip install 'mlc-llm[ray]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlc_llm.ray.app import build_app

__all__ = ["build_app"]


def __getattr__(name: str) -> object:
    """Ray is loaded with the first use."""
    if name == "build_app":
        from mlc_llm.ray.app import build_app

        return build_app
    raise AttributeError(name)
