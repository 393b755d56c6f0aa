"""`mlc_llm serve`: a model behind OpenAI's API over HTTP."""

from __future__ import annotations

import argparse
from pathlib import Path

from mlc_llm.cli import options
from mlc_llm.cli.flags import naming_flags
from mlc_llm.cli.guard import OK
from mlc_llm.cli.terminal import note
from mlc_llm.serve.config import EngineMode
from mlc_llm.serve.server.settings import Limits, ServerSettings, read_keys
from mlc_llm.support.garbage import collect_from_now

MODE: EngineMode = "server"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_model(parser, system=False)
    options.add_engine(parser, mode=MODE)
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)"
    )
    group.add_argument("--port", type=int, default=8000, help="(default: %(default)s)")
    group.add_argument("--unix-socket", type=Path, metavar="FILE", help="listen on a unix socket")
    group.add_argument(
        "--served-model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="a name of the model in requests; may be given more than once",
    )
    group.add_argument(
        "--any-model-name", action="store_true", help="take requests for a model of any name"
    )
    group.add_argument("--enable-debug", action="store_true", help="serve debug_config in requests")
    _add_safety(parser.add_argument_group("who may call it"))
    _add_limits(parser.add_argument_group("limits"))


def _add_safety(group: argparse._ArgumentGroup) -> None:
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


def _add_limits(group: argparse._ArgumentGroup) -> None:
    limits = Limits()
    group.add_argument(
        "--max-queue",
        type=int,
        default=limits.queue,
        metavar="N",
        help="answers that may wait for the engine; more are refused (default: %(default)s)",
    )
    group.add_argument(
        "--max-body-mb",
        type=int,
        default=limits.body_bytes >> 20,
        metavar="MB",
        help="the largest request (default: %(default)s)",
    )
    group.add_argument(
        "--drain-seconds",
        type=float,
        default=limits.drain_s,
        metavar="S",
        help="after SIGTERM, running answers have so long to end (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Mistakes in the arguments are reported before the model is opened."""
    with naming_flags():
        settings = _settings(args)
        settings.check()
        engine_config = options.engine_config(args)
        from mlc_llm.serve.async_reader import deliver_to_loops
        from mlc_llm.serve.client import EngineClient
        from mlc_llm.serve.server.context import ServerContext
        from mlc_llm.serve.server.run import listen, serve

        client = EngineClient(
            deliver_to_loops,
            args.model,
            args.device,
            model_lib=None,
            mode=engine_config.mode or MODE,
            engine_config=engine_config,
            trace=None,
        )
        try:
            context = ServerContext(client, client.model_name, settings)
            own = listen(context)
            collect_from_now()
            note(f"serving {context.names[0]} at {_address(settings)}")
            serve(context, own)
        finally:
            client.terminate()
    return OK


def _settings(args: argparse.Namespace) -> ServerSettings:
    limits = Limits(
        queue=args.max_queue, body_bytes=args.max_body_mb << 20, drain_s=args.drain_seconds
    )
    return ServerSettings(
        host=args.host,
        port=args.port,
        unix_socket=args.unix_socket,
        keys=read_keys(args.api_key, args.api_key_file),
        allow_no_key=args.no_auth,
        allowed_hosts=tuple(args.allow_host),
        allowed_origins=tuple(args.cors_origin),
        served_names=tuple(args.served_model_name),
        any_name=args.any_model_name,
        debug=args.enable_debug,
        certificate=args.tls_cert,
        certificate_key=args.tls_key,
        limits=limits,
    )


def _address(settings: ServerSettings) -> str:
    if settings.unix_socket is not None:
        return str(settings.unix_socket)
    scheme = "http" if settings.certificate is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{settings.port}/v1"
