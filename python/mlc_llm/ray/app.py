"""The application of Ray Serve: an ingress with the routes of the server, and a deployment for each
model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from mlc_llm.ray.client import ReplicaOpener, Replicas
from mlc_llm.ray.deployed import Replica
from mlc_llm.ray.handles import HandleReplicas
from mlc_llm.ray.resources import INGRESS_CPUS
from mlc_llm.ray.settings import AppSettings, ModelSettings
from mlc_llm.serve.server.app import create_app
from mlc_llm.serve.server.calls.context import ServerContext
from mlc_llm.serve.server.limits.settings import Limits, ServerSettings
from mlc_llm.serve.server.limits.tenants import Keyring, read_keys
from mlc_llm.serve.server.pool.registry import ModelRegistry
from mlc_llm.serve.server.pool.slot import ModelSlot
from mlc_llm.support.garbage import collect_from_now

MOST_ONGOING = 4096
"""Requests that one replica or one ingress may have. The server's own limits are smaller."""
USUAL_ANSWERS = 128
"""Answers at a time of an engine in the mode of servers."""
ROUTER = "mlc_llm.ray.serve_router:ServeRouter"


@serve.ingress()
class Ingress:
    """The routes of `mlc_llm serve`, before replicas."""

    def __init__(self, settings: AppSettings, handles: Mapping[str, DeploymentHandle[Any]]) -> None:
        self._settings = settings
        self._handles = dict(handles)
        self._replicas: list[HandleReplicas] = []

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """Asks the replicas of the default model, and waits until one is ready."""
        loop = asyncio.get_running_loop()
        settings = self._settings
        replicas: dict[str | None, Replicas] = {}
        for one in settings.models:
            prefill = self._handles.get(one.prefill_name)
            self._replicas.append(HandleReplicas(self._handles[one.name], one, prefill))
            replicas[one.name] = self._replicas[-1]
        models: dict[str | None, ModelSettings] = {one.name: one for one in settings.models}
        registry = ModelRegistry(
            [ModelSlot((one.name,), one.name) for one in settings.models],
            ReplicaOpener(replicas, models, lambda: loop),
            most_waiting=settings.queue,
            most_tokens=settings.queue_tokens,
        )
        await asyncio.to_thread(registry.open_now, registry.default)
        collect_from_now()
        return create_app(ServerContext(registry, _server_settings(settings)))

    async def ending(self) -> None:
        """The application ends: no request waits for a replica any more."""
        for one in self._replicas:
            one.ending()


def _server_settings(settings: AppSettings) -> ServerSettings:
    """What `mlc_llm serve` would have. Ray's proxy listens; who may reach it is its matter."""
    keys = Keyring() if settings.keys is None else read_keys([], settings.keys)
    limits = replace(Limits(), queue=settings.queue, queue_tokens=settings.queue_tokens)
    return ServerSettings(keys=keys, allowed_hosts=("*",), limits=limits)


def build_app(args: Mapping[str, object]) -> serve.Application:
    """The application of these `args`, for `serve run` and `serve deploy`. Raises `UserError` for
    what they cannot have."""
    settings = AppSettings.of(args)
    handles = {one.name: _deployment(one, one.name) for one in settings.models}
    for one in settings.models:
        if one.prefill is not None:
            alone = replace(one, replicas=one.prefill.replicas, autoscaling=None)
            handles[one.prefill_name] = _deployment(alone, one.prefill_name)
    ingress = serve.deployment(Ingress).options(
        name="ingress",
        num_replicas=settings.ingresses,
        max_ongoing_requests=MOST_ONGOING,
        graceful_shutdown_timeout_s=max(one.drain_s for one in settings.models),
        ray_actor_options={"num_cpus": INGRESS_CPUS},
    )
    return ingress.bind(settings, handles)


def _number(model: ModelSettings) -> dict[str, Any]:
    """How many replicas there are."""
    scaling = model.autoscaling
    if scaling is None:
        return {"num_replicas": model.replicas}
    policy = AutoscalingPolicy(
        policy_function="mlc_llm.ray.scaling:QueuedTokens",
        policy_kwargs={
            "queued_tokens": scaling.queued_tokens,
            "answers": model.engine.max_num_sequence or USUAL_ANSWERS,
        },
    )
    config = AutoscalingConfig(
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        initial_replicas=scaling.min_replicas,
        metrics_interval_s=1.0,
        look_back_period_s=2.0,
        upscale_delay_s=3.0,
        downscale_delay_s=60.0,
        policy=policy,
    )
    return {"autoscaling_config": config}


def _deployment(model: ModelSettings, name: str) -> serve.Application:
    deployment = serve.deployment(Replica).options(
        name=name,
        **_number(model),
        max_ongoing_requests=MOST_ONGOING,
        graceful_shutdown_timeout_s=model.drain_s,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=model.health_check_s,
        ray_actor_options={"num_cpus": model.num_cpus, "num_gpus": model.num_gpus},
        logging_config={"enable_access_log": False},  # the ingress has a line for each request
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER,
            request_router_kwargs={"by_prefix": model.routing == "prefix"},
            request_routing_stats_period_s=0.5,
        ),
    )
    return deployment.bind(model)
