"""`mlc_llm serve`: one model or several behind OpenAI's API over HTTP."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_llm.cli import options, overrides, serve_flags
from mlc_llm.cli.flags import ENGINE_FLAGS, naming_flags
from mlc_llm.cli.streams import leave_at_once
from mlc_llm.cli.terminal import note
from mlc_llm.errors import InvalidField, UserError
from mlc_llm.ray.ports import choose_ways_of_ray
from mlc_llm.serve.config import EngineConfig, EngineMode
from mlc_llm.serve.server.limits.settings import ServerSettings
from mlc_llm.support.c_memory import few_arenas
from mlc_llm.support.garbage import collect_from_now
from mlc_llm.support.logging import set_up_access

if TYPE_CHECKING:
    from mlc_llm.serve.server.notes.otel import Spans
    from mlc_llm.serve.server.pool.registry import ModelRegistry

MODE: EngineMode = "server"
MOST_GB = 2.0**20
FLAGS = {
    "kv_events.replay_endpoint": "--kv-events-replay",
    "kv_events.endpoint": "--kv-events",
    "served_model_name": "--served-model-name",
    "cors_origin": "--cors-origin",
    "allow_host": "--allow-host",
    "tls_cert": "--tls-cert",
    "tls_key": "--tls-key",
    **overrides.FLAGS,
}
"""Fields of a server -> the flags that set them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="models to serve, as for --model, or NAME=MODEL; the first one is opened at once, "
        "the others when they are asked for",
    )
    options.add_model(parser, system=False, action=_OneModel)
    options.add_engine(parser, mode=MODE)
    overrides.add_argument(parser)
    _add_memory(parser.add_argument_group("several models"))
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)"
    )
    port = "the port to listen on; 0: a free one (default: %(default)s)"
    group.add_argument("--port", type=int, default=8000, help=port)
    group.add_argument("--unix-socket", type=Path, metavar="FILE", help="listen on a unix socket")
    group.add_argument(
        "--served-model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="a name of the model in requests; may be given more than once. With several models: "
        "one for each",
    )
    group.add_argument(
        "--any-model-name", action="store_true", help="take requests for a model of any name"
    )
    group.add_argument(
        "--enable-debug", action="store_true", help="serve /debug/... and debug_config in requests"
    )
    _add_logs(parser.add_argument_group("logs and traces"))
    serve_flags.add_safety(parser.add_argument_group("who may call it"))
    serve_flags.add_limits(parser.add_argument_group("limits"))
    serve_flags.add_events(parser.add_argument_group("routers and replicas"))


class _OneModel(argparse.Action):
    """Stores the model. A second one would take its place, and several are asked for otherwise."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) not in (None, values):
            parser.error("--model is given twice: give several models without it")
        setattr(namespace, self.dest, values)


def _add_logs(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--log-format",
        choices=("text", "json", "off"),
        default="text",
        metavar="NAME",
        help="how requests are logged, a line each, without what they say: text, json (then all "
        "lines of the log are JSON), or off (default: %(default)s)",
    )
    group.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="send a span of OpenTelemetry for each request there, such as "
        "http://localhost:4318/v1/traces; needs the extra 'otel'",
    )


def _add_memory(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--memory",
        type=float,
        metavar="GB",
        help="memory of all open models together; the least recently used one is closed if another "
        "one needs it (default: half of what is free now, or up to 85%% if a model needs it; with "
        "several models: 85%%)",
    )
    group.add_argument(
        "--max-open-models",
        type=int,
        metavar="N",
        help="models that are open at a time; each has an equal share of the memory (default: all)",
    )


def run(args: argparse.Namespace) -> int:
    """Mistakes in the arguments are reported before the model is opened."""
    few_arenas()
    set_up_access(args.log_format)
    if args.ray is not None:
        return _run_on_ray(args)
    with naming_flags({**ENGINE_FLAGS, **FLAGS}), overrides.naming(args.overrides):
        settings = serve_flags.settings(args)
        settings.check()
        models = _models(args)
        engine_config = overrides.applied(options.engine_config(args), args.overrides)
        engine_config = serve_flags.with_events(engine_config, args, len(models))
        spans = _spans(args.otlp_traces_endpoint)
        from mlc_llm.serve.server.calls.context import ServerContext
        from mlc_llm.serve.server.listening import bound, check_certificate
        from mlc_llm.serve.server.run import serve

        check_certificate(settings)
        with bound(settings) as own:  # before the model, which takes a while
            registry = _registry(args, models, engine_config, settings)
            try:
                registry.open_now(registry.default)
                context = ServerContext(registry, settings)
                context.watchers += [] if spans is None else [spans.ended]
                collect_from_now()
                names = ", ".join(slot.names[0] for slot in registry.slots)
                line = f"serving {names} at {_address(settings, own)}"
                code = serve(context, own, lambda: note(f"{line}{_page(settings, own)}"))
            finally:
                registry.terminate()
                if spans is not None:
                    spans.close()
        if registry.is_stuck:  # Python would wait for its thread
            leave_at_once(code)
    return code


def _run_on_ray(args: argparse.Namespace) -> int:
    """Raises `UserError` for other flags, which would have no effect, and without Ray."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    usual = {**vars(parser.parse_args([])), "ray": args.ray}
    for name, value in usual.items():
        if getattr(args, name) != value:
            flag = name if name == "models" else f"--{name.replace('_', '-')}"
            raise UserError(f"{flag}: with --ray, it belongs into the file")
    choose_ways_of_ray()
    try:
        from mlc_llm.ray.run import serve_file
    except ImportError as error:
        words = f"needs packages that are not here ({error}): pip install 'mlc-llm[ray]'"
        raise UserError(f"--ray {args.ray}: {words}") from error
    return serve_file(args.ray, note)


def _registry(
    args: argparse.Namespace, models: list[str], config: EngineConfig, settings: ServerSettings
) -> ModelRegistry:
    """The models of the server, not open yet. Raises `UserError`."""
    from mlc_llm.serve.server.pool.names import slots_of
    from mlc_llm.serve.server.pool.openers import EngineOpener, share_alone, usual_budget
    from mlc_llm.serve.server.pool.registry import ModelRegistry

    slots = slots_of(models, args.served_model_name)
    for name in config.adapters:
        if name == "default" or name in slots[0].names:
            raise UserError(f"--adapter {name}: the model has this name; give another one")
    if len(slots) > 1 and config.adapters:
        raise InvalidField(
            "adapters", [*config.adapters], "it is for one model; several are served"
        )
    slots[0].configured = tuple(config.adapters)
    budget, share = _bytes(args.memory), None
    if budget is None and (len(slots) > 1 or not _says_memory(config)):
        budget = usual_budget()
        share = share_alone(budget) if len(slots) == 1 else None
    return ModelRegistry(
        slots,
        EngineOpener(args.device, config, traces=settings.debug),
        budget=budget,
        share=share,
        most_open=args.max_open_models,
        any_name=settings.any_name,
        most_waiting=settings.limits.queue,
        most_tokens=settings.limits.queue_tokens,
    )


def _says_memory(config: EngineConfig) -> bool:
    """Whether the memory of one model follows from its own fields."""
    return config.gpu_memory_utilization is not None or config.max_total_sequence_length is not None


def _spans(endpoint: str | None) -> Spans | None:
    """Raises `UserError` for what is no address, and without the packages."""
    if endpoint is None:
        return None
    flag = f"--otlp-traces-endpoint {endpoint}"
    if not endpoint.startswith(("http://", "https://")):
        raise UserError(f"{flag}: should begin with http:// or https://")
    try:
        from mlc_llm.serve.server.notes.otel import Spans
    except ImportError as error:
        words = f"needs packages that are not here ({error}): pip install 'mlc-llm[otel]'"
        raise UserError(f"{flag}: {words}") from error
    return Spans.to_collector(endpoint)


def _models(args: argparse.Namespace) -> list[str]:
    """Raises `InvalidField` for contradictions."""
    if args.model is None:
        models: list[str] = args.models
    elif args.models:
        raise UserError("--model: give all models without it")
    else:
        models = [args.model]
    if len(models) > 1:
        for flag, value in (("--model-lib", args.model_lib), ("--draft-model", args.draft_model)):
            if value is not None:
                raise UserError(f"{flag} {value}: it is for one model, and several are served")
    if args.memory is not None and not 0 < args.memory < MOST_GB:
        raise UserError(f"--memory {args.memory}: should be above 0, in GB")
    most = args.max_open_models
    if most is not None and not 1 <= most <= max(len(models), 1):
        raise UserError(f"--max-open-models {most}: should be 1 to {max(len(models), 1)}")
    return models


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else int(gigabytes * 1e9)


def _page(settings: ServerSettings, own: socket.socket) -> str:
    if settings.unix_socket is not None:
        return ""
    return f"; chat page: {_address(settings, own).removesuffix('v1')}"


def _address(settings: ServerSettings, own: socket.socket) -> str:
    if settings.unix_socket is not None:
        return str(settings.unix_socket)
    scheme = "http" if settings.certificate is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{own.getsockname()[1]}/v1"
