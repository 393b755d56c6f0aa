"""Where events go: every field is checked, and the messages have vLLM's fields."""

from __future__ import annotations

import argparse
from array import array
from dataclasses import replace

import pytest

from mlc_llm.cli import serve_flags
from mlc_llm.errors import InvalidField, UserError
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.mock_echo import echo_config, echo_core
from mlc_llm.serve.kv_events.events import Cleared, Removed, Stored
from mlc_llm.serve.kv_events.messages import batch
from mlc_llm.serve.kv_events.settings import KVEventsConfig
from mlc_llm.serve.opening.bundle import echo_bundle
from mlc_llm.serve.opening.cache_events import publish_events
from mlc_llm.testing.fake_runner import FakeRunner

HERE = "tcp://127.0.0.1:5557"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (7, "kv_events = 7"),
        ({}, "kv_events.endpoint"),
        ({"endpoint": "127.0.0.1:5557"}, "kv_events.endpoint = '127.0.0.1:5557'"),
        ({"endpoint": "tcp://a:5557/x"}, "kv_events.endpoint"),
        ({"endpoint": HERE, "replay_endpoint": ">" + HERE}, "kv_events.replay_endpoint = '>tcp"),
        ({"endpoint": HERE, "form": "json"}, "kv_events.form = 'json'.*map, array"),
        ({"endpoint": HERE, "buffer_steps": 0}, "kv_events.buffer_steps = 0"),
        ({"endpoint": HERE, "topik": ""}, "topik = '' .*'topic'"),
    ],
)
def test_a_wrong_field_is_named(value: object, words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        EngineConfig.from_mapping({"kv_events": value})


def test_a_config_goes_through_json() -> None:
    for endpoint in (HERE, "tcp://*:0", ">tcp://router.example:5557", "ipc:///tmp/x"):
        events = KVEventsConfig(endpoint=endpoint, replay_endpoint=HERE, topic="t", form="array")
        config = EngineConfig(kv_events=events)
        assert EngineConfig.from_json(config.asjson()) == config


def test_events_need_a_prefix_cache() -> None:
    with pytest.raises(InvalidField, match=r"kv_events = .*prefix_cache_mode is 'disable'"):
        EngineConfig(kv_events=KVEventsConfig(endpoint=HERE), prefix_cache_mode="disable")


def test_a_model_whose_prompts_are_taken_over_whole_has_no_blocks() -> None:
    plain = FakeRunner(num_pages=8, page_size=4, max_num_sequence=2, max_batch_tokens=64).limits
    limits = replace(plain, has_states=True)
    config = echo_config(EngineConfig(kv_events=KVEventsConfig(endpoint=HERE)))
    core = echo_core(echo_bundle(64).tokenizer, config)
    with pytest.raises(InvalidField, match=r"kv_events = .*whole or not at all"):
        publish_events(core, limits, config)
    assert core.prefix_cache.observer is None


def test_messages_have_the_fields_of_vllm() -> None:
    stored = Stored((5, 6), None, array("i", range(128)), "ab")
    events = [Cleared(), stored, Stored((7,), 6, array("i", [1] * 64), "ab"), Removed((7, 6))]
    seconds, maps, rank = batch(events, 2.5, "map")
    assert (seconds, rank) == (2.5, 0)
    assert maps == [
        {"type": "AllBlocksCleared"},
        {
            "type": "BlockStored",
            "block_hashes": [5, 6],
            "parent_block_hash": None,
            "token_ids": list(range(128)),
            "block_size": 64,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [["ab"], None],
        },
        {
            "type": "BlockStored",
            "block_hashes": [7],
            "parent_block_hash": 6,
            "token_ids": [1] * 64,
            "block_size": 64,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        },
        {"type": "BlockRemoved", "block_hashes": [7, 6], "medium": "GPU"},
    ]
    arrays = batch(events, 2.5, "array")[1]
    assert arrays == [list(one.values()) for one in maps]


def flags(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve_flags.add_events(parser.add_argument_group("routers"))
    return parser.parse_args(words)


def test_flags_of_the_server() -> None:
    none, asked = flags(), flags("--kv-events", HERE, "--kv-events-replay", "tcp://*:1")
    assert serve_flags.with_events(EngineConfig(), none, 2) == EngineConfig()
    found = serve_flags.with_events(EngineConfig(), asked, 1)
    assert found.kv_events == KVEventsConfig(endpoint=HERE, replay_endpoint="tcp://*:1")
    with pytest.raises(UserError, match=r"--kv-events: .*one model"):
        serve_flags.with_events(EngineConfig(), asked, 2)
    with pytest.raises(UserError, match="--overrides"):
        serve_flags.with_events(found, asked, 1)
    with pytest.raises(UserError, match="give --kv-events too"):
        serve_flags.with_events(EngineConfig(), flags("--kv-events-replay", HERE), 1)


def test_ids_of_images_have_no_sign() -> None:
    """vLLM's router reads ids as 32 bits without one, and drops a batch that it cannot read."""
    ids = array("i", [1, -1, -(2**31)])
    (event,) = batch([Stored((7,), None, ids)], 2.5, "map")[1]  # type: ignore[misc]
    assert event["token_ids"] == [1, 2**32 - 1, 2**31]
