"""`disagg_config` between two servers: the pages go through whoever asks both."""

from __future__ import annotations

from typing import Any

from server_harness import Running, running

from mlc_llm.serve.server.limits.settings import ServerSettings

PROMPT = "what one server has read is not read again by the other one " * 3


def asked(server: Running, kind: str, **fields: Any) -> Any:
    body = {"model": "default", "prompt": PROMPT, "max_tokens": 20}
    body["debug_config"] = {"disagg_config": {"kind": kind, **fields}}
    return server.call("POST", "/v1/completions", body)


def test_a_prompt_goes_from_one_server_to_another() -> None:
    settings = ServerSettings(port=0, debug=True)
    with running(settings) as first, running(settings) as second:
        ticket = asked(second, "prepare_receive", kv_window_end=-1).json["usage"]["extra"]
        given = {"kv_append_metadata": ticket["kv_append_metadata"]}
        sent = asked(first, "remote_send", kv_window_end=-1, **given).json
        assert sent["choices"][0]["text"] == ""
        pages = sent["usage"]["extra"]["kv_append_metadata"]
        for wrong in (pages[:-8], pages[:40] + "A" + pages[41:]):
            fields = {"kv_window_begin": -1, "kv_append_metadata": wrong}
            answer = asked(second, "start_generation", **fields).json
            assert answer["choices"][0]["text"] == PROMPT[:20]
            assert answer["usage"]["extra"]["kv_transfer_refused"]
            second.call("POST", "/debug/reset_engine", {})
        fields = {"kv_window_begin": -1, "kv_append_metadata": pages}
        answer = asked(second, "start_generation", **fields).json
        assert answer["choices"][0]["text"] == PROMPT[:20]
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == answer["usage"]["prompt_tokens"] - 1


def test_it_is_refused_without_debugging(server: Running) -> None:
    reply = asked(server, "prepare_receive", kv_window_end=-1)
    assert reply.status == 400 and "enable-debug" in str(reply.json)
