"""The flags of `mlc_llm serve` about who may call it and how much, and the settings they make."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mlc_llm.errors import UserError
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.kv_events.settings import KVEventsConfig
from mlc_llm.serve.server.limits.settings import ON_STALL, Limits, ServerSettings
from mlc_llm.serve.server.limits.tenants import Keyring, read_keys


class _Limit(NamedTuple):
    """A number of `Limits` and its flag."""

    field: str
    metavar: str
    help: str
    least: float
    unit: int = 1


_LIMITS = {
    "--max-queue": _Limit(
        "queue", "N", "answers that may wait for the engine; more are refused", 0
    ),
    "--max-queue-tokens": _Limit(
        "queue_tokens", "N", "tokens of prompts that may wait for a model", 1
    ),
    "--max-per-key": _Limit(
        "per_key", "N", "answers of one key that may wait or run; with several keys half of all", 1
    ),
    "--max-wait": _Limit("wait_s", "S", "a request waits so long for its turn", 0.001),
    "--max-connections": _Limit(
        "connections", "N", "connections at a time; one more is closed at once", 1
    ),
    "--max-body-mb": _Limit("body_bytes", "MB", "the largest request", 1, 1 << 20),
    "--drain-seconds": _Limit(
        "drain_s", "S", "after SIGTERM, running answers have so long to end", 0
    ),
    "--stall-seconds": _Limit(
        "stall_s", "S", "an engine with work that has done no step for so long is stalled", 0.1
    ),
}
_USUAL = Limits()


def add_safety(group: argparse._ArgumentGroup) -> None:
    """Flags: keys, hosts, pages, certificates."""
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="each request needs this key, or another one that is given "
        "(also in the variable MLC_LLM_API_KEY)",
    )
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="keys, one a line")
    group.add_argument(
        "--no-auth", action="store_true", help="let other machines call it without a key"
    )
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name by which clients may call it; *: all",
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="a web page that may call it, such as https://example.org; *: all",
    )
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve HTTPS")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="the key of the certificate")


def add_limits(group: argparse._ArgumentGroup) -> None:
    """Flags: how much clients may ask for."""
    for flag, one in _LIMITS.items():
        usual = getattr(_USUAL, one.field)
        shown = (
            "" if usual is None else f" (default: {usual // one.unit if one.unit > 1 else usual})"
        )
        group.add_argument(
            flag,
            type=float if isinstance(usual, float) else int,
            metavar=one.metavar,
            help=one.help + shown,
        )
    group.add_argument(
        "--strict-params",
        action="store_true",
        help="refuse requests with fields that have no effect (default: x-ignored-params names "
        "them)",
    )
    group.add_argument(
        "--keep-model",
        type=float,
        metavar="SECONDS",
        help="close a model after so long without a request; the next one opens it again (default: "
        "it stays open)",
    )
    group.add_argument(
        "--on-stall",
        choices=ON_STALL,
        default="wait",
        metavar="WHAT",
        help="what to do with a stalled engine: wait until it moves again, restart it, or exit "
        "with code 70 for a supervisor (default: %(default)s)",
    )


def add_events(group: argparse._ArgumentGroup) -> None:
    """Flags: what routers may know, and replicas."""
    group.add_argument(
        "--ray",
        type=Path,
        metavar="FILE",
        help="serve replicas on Ray Serve as this config file of Ray says, which has all other "
        "settings; needs the extra 'ray'",
    )
    group.add_argument(
        "--kv-events",
        metavar="ADDRESS",
        help="publish what the prefix cache holds, as vLLM does: tcp://127.0.0.1:5557 listens "
        "there, >tcp://ROUTER:5557 connects; whoever reads it can read all prompts; needs the "
        "extra 'kv-events'",
    )
    group.add_argument(
        "--kv-events-replay",
        metavar="ADDRESS",
        help="listen there for readers that ask for lost events again",
    )


def with_events(config: EngineConfig, args: argparse.Namespace, models: int) -> EngineConfig:
    """The config with what these flags say. models: that are served. Raises `UserError`."""
    if args.kv_events is None:
        if args.kv_events_replay is not None:
            raise UserError("--kv-events-replay: give --kv-events too")
        return config
    if config.kv_events is not None:
        raise UserError("--kv-events: --overrides has kv_events too; leave one of the two out")
    if models > 1:
        raise UserError("--kv-events: it is for one model, and several are served")
    events = KVEventsConfig(endpoint=args.kv_events, replay_endpoint=args.kv_events_replay)
    return replace(config, kv_events=events)


def settings(args: argparse.Namespace) -> ServerSettings:
    """The settings of the flags. Raises `UserError` for a value out of range."""

    def read() -> Keyring:
        return read_keys(args.api_key, args.api_key_file)

    if args.keep_model is not None and not args.keep_model >= 0:
        raise UserError(f"--keep-model {args.keep_model}: should be at least 0")
    return ServerSettings(
        keep_model_s=args.keep_model,
        host=args.host,
        port=args.port,
        unix_socket=args.unix_socket,
        keys=read(),
        read_keys_again=None if args.api_key_file is None else read,
        on_stall=args.on_stall,
        allow_no_key=args.no_auth,
        allowed_hosts=tuple(args.allow_host),
        allowed_origins=tuple(args.cors_origin),
        any_name=args.any_model_name,
        strict_params=args.strict_params,
        debug=args.enable_debug,
        certificate=args.tls_cert,
        certificate_key=args.tls_key,
        limits=_limits(args),
    )


def _limits(args: argparse.Namespace) -> Limits:
    given = {}
    for flag, one in _LIMITS.items():
        value = getattr(args, flag[2:].replace("-", "_"))
        if value is not None:
            if not one.least <= value < float("inf"):
                raise UserError(f"{flag} {value}: should be at least {one.least}")
            given[one.field] = value * one.unit
    return Limits(**given)
