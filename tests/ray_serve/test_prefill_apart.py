"""A prompt that one replica computes for another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from replica_harness import replica, run

from mlc_llm.errors import RequestError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.ray.replica import ModelReplica
from mlc_llm.ray.wire import WireRequest, WrongReplica

PROMPT = tuple(b"the tokens of this long text come back, whoever has read it first " * 5)


@pytest.fixture
def pair() -> Iterator[list[ModelReplica]]:
    found = [replica(), replica()]
    yield found
    for one in found:
        one.close()


def wire_for(one: ModelReplica, **more: object) -> WireRequest:
    config = GenerationConfig(max_tokens=9, n=2).merged_over(one._load.bundle.defaults)
    return WireRequest("a", PROMPT, config.asjson(), one._load.fingerprint, **more)  # type: ignore[arg-type]


async def answered(one: ModelReplica, wire: WireRequest) -> tuple[list[int], int]:
    """The tokens of the first sequence, and how many of the prompt were cached."""
    tokens, usage = list[int](), {}
    async for outputs in one.generate(wire):
        for output in outputs:
            if output.request_final_usage_json_str is not None:
                usage = json.loads(output.request_final_usage_json_str)
            else:
                tokens += output.group_delta_token_ids[0]
    return tokens, usage["prompt_tokens_details"]["cached_tokens"]


def test_the_other_replica_computes_one_token(pair: list[ModelReplica]) -> None:
    async def work() -> None:
        wire = wire_for(pair[0], cache_salt="of a key")
        transfer = await pair[0].prefill(wire)
        assert transfer.length == len(PROMPT) - 1
        assert await pair[1].take_in(wire, transfer)
        assert await answered(pair[1], wire) == (list(PROMPT[:9]), len(PROMPT) - 1)
        other = replace(wire, request_id="b", cache_salt="")
        assert await answered(pair[1], other) == (list(PROMPT[:9]), 0)
        for one in pair:
            one._load.core.check_integrity()

    run(work)


def test_what_was_cut_short_is_computed_again(pair: list[ModelReplica]) -> None:
    async def work() -> None:
        wire = wire_for(pair[0])
        transfer = await pair[0].prefill(wire)
        for wrong in (
            replace(transfer, tensors=(transfer.tensors[0][:-1],)),
            replace(transfer, identity="other").sealed(),
        ):
            assert not await pair[1].take_in(wire, wrong)
        assert await answered(pair[1], wire) == (list(PROMPT[:9]), 0)
        pair[1]._load.core.check_integrity()

    run(work)


def test_a_prompt_of_another_model_is_refused(pair: list[ModelReplica]) -> None:
    async def work() -> None:
        with pytest.raises(WrongReplica):
            await pair[0].prefill(replace(wire_for(pair[0]), fingerprint="fp_other"))
        config = json.dumps({**json.loads(wire_for(pair[0]).config), "logit_bias": {"999": 1.0}})
        with pytest.raises(RequestError, match="not computed"):
            await pair[0].prefill(replace(wire_for(pair[0]), config=config))

    run(work)
