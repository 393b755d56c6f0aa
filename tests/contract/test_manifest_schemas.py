"""The manifests for Kubernetes, by the schemas of Kubernetes itself (`kubernetes-validate`).

KubeRay's own objects are in none of them, so of its manifest only the pods are checked here;
`tests/test_kubernetes.py` looks at the fields around them.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

yaml: Any = pytest.importorskip("yaml", reason="needs `pip install pyyaml`")
schemas: Any = pytest.importorskip(
    "kubernetes_validate", reason="needs `pip install kubernetes-validate`"
)

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"


def objects() -> dict[str, dict[str, Any]]:
    """All that Kubernetes would make, by a name."""
    found = {f"{one['kind']} {one['metadata']['name']}": one for one in manifest("servers")}
    (service,) = manifest("kuberay")
    ray = service["spec"]["rayClusterConfig"]
    for number, group in enumerate([ray["headGroupSpec"], *ray["workerGroupSpecs"]]):
        template = {"metadata": {"name": "a"}, **group["template"]}
        found[f"pods of Ray {number}"] = {"apiVersion": "v1", "kind": "Pod", **template}
    return found


def manifest(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def check(one: dict[str, Any]) -> None:
    schemas.validate(one, schemas.latest_version(), strict=True)


@pytest.mark.parametrize("name", objects())
def test_the_schema_finds_nothing_wrong(name: str) -> None:
    check(objects()[name])


@pytest.mark.parametrize("name", objects())
def test_the_schema_finds_a_field_that_is_not_there(name: str) -> None:
    """So the test above can fail, for each object."""
    one = copy.deepcopy(objects()[name])
    one["spec"]["replicaCount"] = 3
    with pytest.raises(schemas.ValidationError, match="replicaCount"):
        check(one)


def test_the_schema_finds_a_wrong_value() -> None:
    one = copy.deepcopy(objects()["StatefulSet mlc-llm"])
    one["spec"]["replicas"] = "three"
    with pytest.raises(schemas.ValidationError, match="three"):
        check(one)
