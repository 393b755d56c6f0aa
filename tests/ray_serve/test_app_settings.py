"""The `args` of an application: every field is checked, and errors name it."""

from __future__ import annotations

from typing import Any

import pytest

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.ray.resources import check_resources
from mlc_llm.ray.settings import AppSettings, ModelSettings

MODEL = {"name": "chat", "model": "mock://echo"}


def test_settings() -> None:
    config = {"max_num_sequence": 2}
    scaling = {"max_replicas": 4, "queued_tokens": 100}
    args = {"models": [{**MODEL, "engine_config": config, "autoscaling": scaling}], "queue": 3}
    found = AppSettings.of(args)
    assert (found.queue, found.ingresses, found.keys) == (3, 1, None)
    (model,) = found.models
    assert model.engine.max_num_sequence == 2
    assert model.autoscaling is not None and model.autoscaling.min_replicas == 1
    assert AppSettings.of({"models": [MODEL]}).models == (
        ModelSettings(name="chat", model="mock://echo"),
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "args = "),
        ({}, "models"),
        ({"models": "chat"}, "models = 'chat'"),
        ({"models": [3]}, r"models\[0\] = 3"),
        ({"models": []}, "models = "),
        ({"models": [{}]}, "name"),
        ({"models": [MODEL, MODEL]}, "models = 'chat' .*two models"),
        ({"models": [MODEL], "queu": 1}, "queu = 1 .*'queue'"),
        ({"models": [{**MODEL, "replicas": 0}]}, r"models\[0\].replicas = 0"),
        ({"models": [{**MODEL, "num_cpus": -1}]}, r"models\[0\].num_cpus = -1"),
        ({"models": [{**MODEL, "resume": "yes"}]}, r"models\[0\].resume = 'yes'.*error, replica"),
        ({"models": [{**MODEL, "routing": "any"}]}, r"models\[0\].routing = 'any'"),
        ({"models": [{**MODEL, "engine_config": {"mod": 1}}]}, "mod = 1"),
        ({"models": [{**MODEL, "engine_config": {"kv_events": {"endpoint": "tcp://*:1"}}}]}, "kv_"),
        ({"models": [{**MODEL, "autoscaling": {}}]}, "max_replicas"),
        ({"models": [{**MODEL, "autoscaling": {"max_replicas": 0}}]}, "max_replicas = 0"),
        ({"models": [{**MODEL, "autoscaling": {"max": 1}}]}, "max = 1"),
    ],
)
def test_a_wrong_field_is_named(args: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        AppSettings.of(args)


def test_prefill_replicas_have_a_name_of_their_own() -> None:
    model = {**MODEL, "prefill": {"min_tokens": 100}}
    found = AppSettings.of({"models": [model]}).models[0].prefill
    assert found is not None and (found.replicas, found.min_tokens) == (1, 100)
    with pytest.raises(InvalidField, match="chat-prefill"):
        AppSettings.of({"models": [model, {**MODEL, "name": "chat-prefill"}]})
    with pytest.raises(InvalidField, match=r"models\[0\]\.prefill\.min_tokens"):
        AppSettings.of({"models": [{**MODEL, "prefill": {"min_tokens": 1}}]})
    with pytest.raises(InvalidField, match="6"):
        check_resources(AppSettings.of({"models": [{**model, "num_cpus": 3}]}), [{"CPU": 5.0}])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"num_cpus": 4}, r"models\[0\]\.num_cpus = 4 .* largest node has 3"),
        ({"num_cpus": 2, "replicas": 3}, r"num_cpus = 6\.1 .* together have 6"),
        ({"num_gpus": 2}, r"models\[0\]\.num_gpus = 2 .* largest node has 1"),
        ({"num_gpus": 1, "replicas": 2}, r"num_gpus = 2\.0 .* together have 1"),
        (
            {"num_gpus": 1, "autoscaling": {"min_replicas": 2, "max_replicas": 3}},
            r"num_gpus = 2\.0",
        ),
    ],
)
def test_more_than_the_nodes_have_is_refused(more: dict[str, object], words: str) -> None:
    nodes = [{"CPU": 3.0}, {"CPU": 3.0, "GPU": 1.0}]
    check_resources(AppSettings.of({"models": [MODEL]}), nodes)
    with pytest.raises(InvalidField, match=words):
        check_resources(AppSettings.of({"models": [{**MODEL, **more}]}), nodes)
