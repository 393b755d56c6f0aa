"""What replicas need of the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc_llm.errors import InvalidField
from mlc_llm.ray.settings import AppSettings

INGRESS_CPUS = 0.1


def check_resources(settings: AppSettings, nodes: Sequence[Mapping[str, float]]) -> None:
    """nodes: what each has. Raises `InvalidField` if the replicas that must run need more than all
    nodes have, or one replica more than any node."""
    for name, kind in (("num_cpus", "CPU"), ("num_gpus", "GPU")):
        there = [node.get(kind, 0.0) for node in nodes]
        needed = settings.ingresses * INGRESS_CPUS if kind == "CPU" else 0.0
        for number, model in enumerate(settings.models):
            wanted = getattr(model, name)
            if wanted > max(there, default=0.0):
                words = f"the largest node has {max(there, default=0.0):g}; take less"
                raise InvalidField(f"models[{number}].{name}", wanted, words)
            fewest = model.replicas if model.autoscaling is None else model.autoscaling.min_replicas
            if model.prefill is not None:
                fewest += model.prefill.replicas
            needed += fewest * wanted
        if needed > sum(there):
            words = f"all nodes together have {sum(there):g}; take less, or add nodes"
            raise InvalidField(name, round(needed, 3), words)
