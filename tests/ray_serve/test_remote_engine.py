"""A request through an ingress's client to replicas that die: one end, one text, one usage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest
from replica_harness import Ingress, Local, replica, run, settings

from mlc_llm.errors import ContextLengthExceeded, EngineDead
from mlc_llm.ray.client import ReplicaClient
from mlc_llm.ray.replay import NotTheSame, Replay
from mlc_llm.ray.replica import ModelReplica
from mlc_llm.ray.settings import Autoscaling
from mlc_llm.ray.sum_metrics import summed
from mlc_llm.ray.wire import WireRequest, WrongReplica
from mlc_llm.serve.data import RequestStreamOutput
from mlc_llm.serve.kv_events.blocks import block_keys, root_key
from mlc_llm.serve.server.routes.info import engine_metrics

TEXT = "the tokens of this text come back"
PROMPT = list(TEXT.encode())


@pytest.fixture(scope="module")
def replicas() -> Iterator[list[ModelReplica]]:
    found = [replica(), replica()]
    yield found
    for one in found:
        one.close()


def test_an_answer_is_that_of_an_engine(replicas: list[ModelReplica]) -> None:
    async def work() -> None:
        ingress = Ingress(Local(replicas))
        assert await ingress.ask(PROMPT) == ([TEXT], ["stop", len(PROMPT)])
        texts, ends = await ingress.ask(PROMPT, n=3, max_tokens=5)
        assert texts == [TEXT[:5]] * 3
        assert ends == ["length", "length", "length", 15]
        assert not ingress.client._engine._sent  # type: ignore[attr-defined]

    run(work)


def test_the_ingress_lets_in_what_all_replicas_take_on(replicas: list[ModelReplica]) -> None:
    async def work() -> None:
        one = Ingress(Local(replicas)).client.engine_config
        three = Ingress(Local(replicas), replicas=3).client.engine_config
        scaling = Autoscaling(max_replicas=5, queued_tokens=3000)
        many = Ingress(Local(replicas), autoscaling=scaling).client.engine_config
        assert (one.max_num_sequence, one.prefill_chunk_size) == (32, 1024)
        assert (three.max_num_sequence, three.prefill_chunk_size) == (96, 3 * 1024)
        assert (many.max_num_sequence, many.prefill_chunk_size) == (160, 15_000)

    run(work)


def test_a_request_has_a_seed_and_the_keys_of_its_prompt(replicas: list[ModelReplica]) -> None:
    async def work() -> None:
        local = Local(replicas)
        await Ingress(local).ask([1] * 200, max_tokens=1)
        (wire,) = local.sent
        assert wire.keys == tuple(block_keys([1] * 199, root_key()))
        assert len(wire.keys) == 3
        assert '"seed": null' not in wire.config

    run(work)


@pytest.mark.parametrize("resume", ["error", "replica"])
def test_a_death_before_the_first_token_is_not_seen(
    replicas: list[ModelReplica], resume: str
) -> None:
    async def work() -> None:
        local = Local(replicas)
        local.kill_after = [0, 0]
        ingress = Ingress(local, resume=resume)
        assert await ingress.ask(PROMPT) == ([TEXT], ["stop", len(PROMPT)])
        assert len(local.sent) == 3
        assert len({one.request_id for one in local.sent}) == 3
        assert len({one.config for one in local.sent}) == 1

    run(work)


@pytest.mark.parametrize("outputs", [1, 5, len(PROMPT) - 1, len(PROMPT)])
def test_an_answer_goes_on_where_it_was(replicas: list[ModelReplica], outputs: int) -> None:
    async def work() -> None:
        local = Local(replicas)
        local.kill_after = [outputs, outputs // 2]
        ingress = Ingress(local, resume="replica")
        assert await ingress.ask(PROMPT) == ([TEXT], ["stop", len(PROMPT)])
        assert len(local.sent) == 3

    run(work)


def test_several_choices_go_on(replicas: list[ModelReplica]) -> None:
    async def work() -> None:
        local = Local(replicas)
        local.kill_after = [7]
        texts, ends = await Ingress(local, resume="replica").ask(PROMPT, n=3)
        assert texts == [TEXT] * 3
        assert ends == ["stop"] * 3 + [3 * len(PROMPT)]

    run(work)


@pytest.mark.parametrize(
    ("clients", "kills"), [(16, 100), pytest.param(64, 2000, marks=pytest.mark.slow)]
)
def test_chaos_is_not_seen(replicas: list[ModelReplica], clients: int, kills: int) -> None:
    """Deaths at random moments: each client has its whole text, and one usage."""

    async def work() -> None:
        chance, local = random.Random(3), Local(replicas)
        deaths = [chance.randrange(len(PROMPT)) for _ in range(kills)]
        local.kill_after = list(deaths)
        ingress = Ingress(local, resume="replica", attempts=1000)
        prompts = [[*PROMPT, 33 + number] for number in range(clients)]
        found = await asyncio.gather(*map(ingress.ask, prompts))
        for prompt, answer in zip(prompts, found, strict=True):
            assert answer == ([bytes(prompt).decode()], ["stop", len(prompt)])
        assert not local.kill_after and len(local.sent) == len(deaths) + len(prompts)
        assert not ingress.client._engine._sent  # type: ignore[attr-defined]
        for one in replicas:
            while not one._load.core.is_idle:
                await asyncio.sleep(0.001)
            one._load.core.check_integrity()

    run(work)


def test_an_answer_that_may_not_go_on_ends_with_an_error(replicas: list[ModelReplica]) -> None:
    async def work() -> None:
        local = Local(replicas)
        local.kill_after = [4]
        texts, ends = await Ingress(local).ask(PROMPT)
        assert texts == [TEXT[:4]]
        assert ends == ["it was killed", 4]
        assert len(local.sent) == 1

    run(work)


def test_attempts_have_an_end(replicas: list[ModelReplica]) -> None:
    async def work() -> None:
        local = Local(replicas)
        local.kill_after = [0] * 9
        assert await Ingress(local, attempts=2).ask(PROMPT) == ([""], ["it was killed", 0])
        assert len(local.sent) == 2

    run(work)


def test_closing_a_stream_aborts_the_request_on_its_replica(replicas: list[ModelReplica]) -> None:
    async def work() -> None:
        ingress = Ingress(Local(replicas[:1]))
        reader = await ingress.begin(PROMPT * 50)
        await anext(reader)
        core = replicas[0]._load.core
        assert not core.is_idle
        reader.close()
        while not core.is_idle or ingress.client._engine._sent:  # type: ignore[attr-defined]
            await asyncio.sleep(0.001)
        assert replicas[0].waiting_tokens == 0
        core.check_integrity()

    run(work)


def test_what_is_refused_never_leaves_the_ingress(replicas: list[ModelReplica]) -> None:
    async def work() -> None:
        local = Local(replicas)
        with pytest.raises(ContextLengthExceeded):
            await Ingress(local).ask([1] * 5000)
        assert not local.sent

    run(work)


def test_a_replica_refuses_requests_for_another_model(replicas: list[ModelReplica]) -> None:
    async def work() -> None:
        wire = WireRequest("a", (1, 2), "{}", "fp_other")
        with pytest.raises(WrongReplica, match="fp_other"):
            await anext(replicas[0].generate(wire))  # type: ignore[call-overload]

    run(work)


def test_a_replica_refuses_requests_of_another_version(replicas: list[ModelReplica]) -> None:
    async def work() -> None:
        own = replicas[0]._load.fingerprint
        wire = WireRequest("a", (1, 2), "{}", own, version="0.0.1")
        with pytest.raises(WrongReplica, match=r"version 0\.0\.1"):
            await anext(replicas[0].generate(wire))  # type: ignore[call-overload]

    run(work)


def test_metrics_are_those_of_all_replicas() -> None:
    own = [replica(), replica()]

    async def work() -> None:
        ingress = Ingress(Local(own))
        for _ in range(3):  # two for one of them
            await ingress.ask(PROMPT)
        found = await engine_metrics(ingress.client, 30.0)  # type: ignore[arg-type]
        assert found is not None
        serving = found.metrics["serving"]
        assert found.metrics["replicas_answering"] == 2
        assert found.metrics["completion_tokens_sum"] == 3 * len(PROMPT)
        assert "last_finished_request" not in found.metrics
        assert serving["prompt_tokens"] == 3 * len(PROMPT)
        assert serving["ended"]["stop"] == 3
        buckets = serving["end_to_end"]["buckets"]
        assert buckets[-1][1] == 3
        assert [one for one, _ in buckets] == sorted(one for one, _ in buckets)
        assert serving["kv_cache_usage"] == 0.0
        assert not ingress.client._engine._sent  # type: ignore[attr-defined]

    try:
        run(work)
    finally:
        for one in own:
            one.close()


def test_metrics_of_no_replica_are_missing() -> None:
    assert summed([]) == {"replicas_answering": 0}


def test_replicas_of_another_version_are_refused(
    replicas: list[ModelReplica], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        monkeypatch.setattr("mlc_llm.ray.client.__version__", "0.0.1")
        with pytest.raises(EngineDead, match=r"replicas of 'echo' .* ingress has 0\.0\.1"):
            ReplicaClient(Local(replicas), settings(), asyncio.get_running_loop())

    run(work)


def test_other_tokens_are_never_joined() -> None:
    replay = Replay("a", 1, 3)
    first = [RequestStreamOutput("a", [[1, 2]], None, [None])]
    assert replay.fresh(first)[0].group_delta_token_ids == [[1, 2]]
    replay.begin_again()
    with pytest.raises(NotTheSame):
        replay.fresh([RequestStreamOutput("a~1", [[1, 3]], None, [None])])
    last, usage = replay.end("error", "lost")
    assert (last.group_finish_reason, last.error) == (["error"], "lost")
    assert usage.request_final_usage_json_str is not None
    assert replay.end("error") == []


def test_scores_are_left_out_with_their_tokens() -> None:
    replay = Replay("a", 1, 3)
    replay.fresh([RequestStreamOutput("a", [[1]], [["x"]], [None], prompt_logprob_json_strs=["p"])])
    replay.begin_again()
    again = RequestStreamOutput("b", [[1, 2]], [["x", "y"]], [None], prompt_logprob_json_strs=["p"])
    (found,) = replay.fresh([again])
    assert (found.request_id, found.group_delta_token_ids) == ("a", [[2]])
    assert found.group_delta_logprob_json_strs == [["y"]]
    assert found.prompt_logprob_json_strs is None
