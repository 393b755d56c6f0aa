"""The manifests for Kubernetes: what they start exists. `tests/contract/test_manifest_schemas.py`
checks their schema."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.cli.parser import build_parser
from mlc_llm.ray.settings import AppSettings

yaml: Any = pytest.importorskip("yaml", reason="needs `pip install pyyaml`")

DEPLOY = Path(__file__).parent.parent / "deploy"
SERVERS, KUBERAY = (DEPLOY / "kubernetes" / f"{name}.yaml" for name in ("servers", "kuberay"))


KUBERAY_FIELDS = {
    "spec": ({"serveConfigV2", "rayClusterConfig"}, {"serveService"}),
    "cluster": (
        {"headGroupSpec", "rayVersion"},
        {"workerGroupSpecs", "enableInTreeAutoscaling", "autoscalerOptions"},
    ),
    "head": ({"rayStartParams", "template"}, {"serviceType", "headService", "enableIngress"}),
    "worker": (
        {"groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"},
        {"replicas", "numOfHosts", "scaleStrategy"},
    ),
}
"""What must be there and what may be there, by the types of KubeRay's operator
(`ray-operator/apis/ray/v1`, `rayservice_types.go` and `raycluster_types.go`)."""


def servers() -> dict[str, Any]:
    """By kind and name."""
    found = yaml.safe_load_all(SERVERS.read_text())
    return {f"{one['kind']} {one['metadata']['name']}": one for one in found}


def cluster() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load(KUBERAY.read_text())["spec"]
    return spec


def pods() -> list[dict[str, Any]]:
    """What is in the pods of Ray."""
    ray = cluster()["rayClusterConfig"]
    return [one["template"]["spec"] for one in (ray["headGroupSpec"], *ray["workerGroupSpecs"])]


def test_a_replica_is_a_server_that_exists() -> None:
    pod = servers()["StatefulSet mlc-llm"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    entry = re.findall(r"^ENTRYPOINT \[(.*)\]$", (DEPLOY / "Containerfile").read_text(), re.M)[0]
    _, *first = [one.strip(' "') for one in entry.split(",")]
    args = build_parser(first[:1]).parse_args([*first, *container["args"]])
    assert args.port == container["ports"][0]["containerPort"]
    wait = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > args.drain_seconds + wait
    paths = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("readiness", "startup")
    }
    assert paths == {"readiness": "/ready", "startup": "/ready"}
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    names = [one["name"] for one in container["env"]]
    assert "MLC_LLM_API_KEY" in names


def test_services_find_the_replicas() -> None:
    found = servers()
    labels = found["StatefulSet mlc-llm"]["spec"]["template"]["metadata"]["labels"]
    for name in ("Service mlc-llm", "Service mlc-llm-each"):
        assert found[name]["spec"]["selector"] == labels
    assert found["StatefulSet mlc-llm"]["spec"]["serviceName"] == "mlc-llm-each"
    (rule,) = found["Ingress mlc-llm"]["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"]["name"] == "mlc-llm"


def test_the_application_on_ray_is_one_that_exists() -> None:
    config = yaml.safe_load(cluster()["serveConfigV2"])
    (app,) = config["applications"]
    assert app["import_path"] == "mlc_llm.ray:build_app"
    settings = AppSettings.of(app["args"])
    (model,) = settings.models
    head, worker = pods()
    assert float(worker["containers"][0]["resources"]["limits"]["cpu"]) >= model.num_cpus
    assert worker["terminationGracePeriodSeconds"] > model.drain_s
    assert settings.keys is not None
    for pod in (head, worker):
        mounts = [one["mountPath"] for one in pod["containers"][0]["volumeMounts"]]
        assert str(settings.keys.parent) in mounts and "/var/cache/mlc-llm" in mounts
    group = cluster()["rayClusterConfig"]["workerGroupSpecs"][0]
    assert model.autoscaling is not None
    assert group["maxReplicas"] >= model.autoscaling.max_replicas


def test_the_fields_are_those_of_kuberay() -> None:
    manifest = yaml.safe_load(KUBERAY.read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayService")
    spec = manifest["spec"]
    ray = spec["rayClusterConfig"]
    workers = [("worker", one) for one in ray["workerGroupSpecs"]]
    for kind, one in [("spec", spec), ("cluster", ray), ("head", ray["headGroupSpec"]), *workers]:
        needed, more = KUBERAY_FIELDS[kind]
        assert needed <= set(one) <= needed | more, kind
    for group in (ray["headGroupSpec"], *ray["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        assert set(group["template"]) <= {"metadata", "spec"}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("file", [SERVERS, KUBERAY])
def test_kubectl_reads_every_object(file: Path) -> None:
    """Without a cluster: it parses, and knows by which interface each object would be made."""
    command = ["kubectl", "annotate", "--local", "-o", "name", "-f", str(file), "tried=yes"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count = sum(1 for _ in yaml.safe_load_all(file.read_text()))
    assert len(done.stdout.split()) == count, done.stdout


def test_the_image_for_ray_is_made_of_what_exists() -> None:
    text = (DEPLOY / "Containerfile.ray").read_text()
    for source in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        for one in source.split():
            assert (DEPLOY.parent / one).exists(), one
