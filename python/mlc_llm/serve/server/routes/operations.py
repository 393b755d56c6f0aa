"""What each route takes and gives, for the OpenAPI file; and which routes need no key."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel

from mlc_llm.protocol.embedding_protocol import EmbeddingRequest, EmbeddingResponse
from mlc_llm.protocol.openai_api_protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    CompletionRequest,
    CompletionResponse,
    ListResponse,
    ModelResponse,
)
from mlc_llm.protocol.rerank_protocol import RerankRequest, RerankResponse
from mlc_llm.serve.anthropic.fields import CountTokensRequest, MessagesRequest
from mlc_llm.serve.ollama.fields import (
    ChatRequest,
    EmbedRequest,
    GenerateRequest,
    OldEmbedRequest,
    ShowRequest,
)
from mlc_llm.serve.responses.answers import ResponseAnswer
from mlc_llm.serve.responses.fields import ResponsesRequest
from mlc_llm.serve.server.routes.page import PAGE_PATHS

Schema = dict[str, Any]
JSON, EVENTS, LINES = "application/json", "text/event-stream", "application/x-ndjson"
OPEN_PATHS = ("/health", "/ready", *PAGE_PATHS)
"""What is answered without a key: probes have none, and the chat page asks its user for one."""


class Operation(NamedTuple):
    """One route, whatever its prefix."""

    words: str
    asks: type[BaseModel] | Schema | None = None
    """The body. None: the route takes none."""
    answers: type[BaseModel] | Schema | None = None
    """The body of status 200. None: text for Prometheus."""
    streams: str | None = None
    """The media type of a streamed answer, where the route has one."""
    needs_body: bool = True


def fields(**properties: Schema) -> Schema:
    """An object with these fields and no others."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


def required(schema: Schema, *names: str) -> Schema:
    """The same schema, with fields that must be there."""
    return {**schema, "required": list(names)}


TEXT: Schema = {"type": "string"}
OPTIONAL_TEXT: Schema = {"type": ["string", "null"]}
IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
OF_A_MODEL = fields(model=OPTIONAL_TEXT)
NAME: Schema = {**TEXT, "minLength": 1, "maxLength": 256}
PATH: Schema = {**TEXT, "minLength": 1, "maxLength": 4096}
OF_A_NAME = fields(model=NAME)
MODELS = required(fields(models={"type": "array", "items": {"type": "object"}}), "models")
FACTS: Schema = {"type": "object"}
STATUS = required(fields(status=TEXT), "status")

OPERATIONS: dict[str, Operation] = {
    "/chat/completions": Operation(
        "The next message of a conversation.", ChatCompletionRequest, ChatCompletionResponse, EVENTS
    ),
    "/completions": Operation(
        "What follows a text, token ids, or each of several.",
        CompletionRequest,
        CompletionResponse,
        EVENTS,
    ),
    "/embeddings": Operation("A vector for each text.", EmbeddingRequest, EmbeddingResponse),
    "/rerank": Operation(
        "Documents in the order of how well they answer a query.", RerankRequest, RerankResponse
    ),
    "/responses": Operation(
        "The next message, as OpenAI's Responses API. Nothing is stored.",
        ResponsesRequest,
        ResponseAnswer,
        EVENTS,
    ),
    "/messages": Operation(
        "The next message, as Anthropic's API.", MessagesRequest, {"type": "object"}, EVENTS
    ),
    "/messages/count_tokens": Operation(
        "How many tokens a conversation has.",
        CountTokensRequest,
        required(fields(input_tokens=COUNT), "input_tokens"),
    ),
    "/api/chat": Operation(
        "The next message, as Ollama's API.", ChatRequest, {"type": "object"}, LINES
    ),
    "/api/generate": Operation(
        "The answer to a text, as Ollama's API.", GenerateRequest, {"type": "object"}, LINES
    ),
    "/api/embed": Operation(
        "The embeddings of a text, or of several, as Ollama's API.",
        EmbedRequest,
        {"type": "object"},
    ),
    "/api/embeddings": Operation(
        "The embedding of one text, as older clients of Ollama ask for it.",
        OldEmbedRequest,
        {"type": "object"},
    ),
    "/api/tags": Operation("The models that there are, as Ollama's API.", None, MODELS),
    "/api/ps": Operation("The models that are in memory, as Ollama's API.", None, MODELS),
    "/api/show": Operation(
        "All that is known of a model, as Ollama's API.", ShowRequest, {"type": "object"}
    ),
    "/api/version": Operation(
        "The version of this server.", None, required(fields(version=TEXT), "version")
    ),
    "/models": Operation("The names of the models.", None, ListResponse),
    "/models/{model}": Operation("What is known of one name.", None, ModelResponse),
    "/tokenize": Operation(
        "Token ids of a text, or of the prompt of a chat.",
        {
            **fields(
                prompt=TEXT,
                messages={"type": "array", "items": {"type": "object"}},
                tools={"type": ["array", "null"], "items": {"type": "object"}},
                tool_choice={"type": ["string", "object", "null"]},
                chat_template_kwargs={"type": ["object", "null"]},
                reasoning_effort=OPTIONAL_TEXT,
                add_generation_prompt=FLAG,
                continue_final_message=FLAG,
                model=OPTIONAL_TEXT,
                add_special_tokens=FLAG,
            ),
            "oneOf": [{"required": ["prompt"]}, {"required": ["messages"]}],
        },
        required(fields(tokens=IDS, count=COUNT, max_model_len=COUNT), "tokens", "count"),
    ),
    "/detokenize": Operation(
        "The text of token ids.",
        required(fields(tokens=IDS, model=OPTIONAL_TEXT), "tokens"),
        required(fields(prompt=TEXT), "prompt"),
    ),
    "/tokenizer_info": Operation(
        "Names of control tokens, and whether prompts begin with one.",
        None,
        fields(
            vocab_size=COUNT,
            bos_token=OPTIONAL_TEXT,
            eos_token=OPTIONAL_TEXT,
            add_bos_token=FLAG,
            has_chat_template=FLAG,
        ),
    ),
    "/health": Operation("The process lives.", None, STATUS),
    "/ready": Operation("Requests are taken on.", None, STATUS),
    "/metrics": Operation("Numbers for Prometheus, as text of its format 0.0.4."),
    "/server_info": Operation("What the server is, for routers.", None, FACTS),
    "/get_server_info": Operation("The same, under its old name.", None, FACTS),
    "/model_info": Operation("What the default model is, for routers.", None, FACTS),
    "/get_model_info": Operation("The same, under its old name.", None, FACTS),
    "/get_load": Operation(
        "How much the engines have to do, for routers.", None, {"type": "array", "items": FACTS}
    ),
    "/openapi.json": Operation("This file.", None, {"type": "object"}),
    "/models/load": Operation("Open a model.", required(OF_A_NAME, "model"), ModelResponse),
    "/models/unload": Operation(
        "Close a model when its answers have ended.", required(OF_A_NAME, "model"), ModelResponse
    ),
    "/adapters/load": Operation(
        "Load a LoRA adapter into a model.",
        required(fields(name=NAME, source=PATH, model=TEXT), "name", "source"),
        ModelResponse,
    ),
    "/adapters/drop": Operation(
        "Drop a LoRA adapter.", required(fields(name=NAME), "name"), ModelResponse
    ),
    "/debug/dump_event_trace": Operation(
        "The events of all requests, as a Chrome trace.",
        OF_A_MODEL,
        {"type": "array", "items": {"type": "object"}},
        needs_body=False,
    ),
    "/debug/dump_engine_metrics": Operation(
        "The numbers of the engine.", OF_A_MODEL, {"type": "object"}, needs_body=False
    ),
    "/debug/reset_engine": Operation(
        "End all requests, and forget the prefix cache and the numbers.",
        OF_A_MODEL,
        STATUS,
        needs_body=False,
    ),
    "/debug/cuda_profiler_start": Operation("Refused: there is no CUDA.", None, {}),
    "/debug/cuda_profiler_stop": Operation("Refused: there is no CUDA.", None, {}),
}
"""By path, without /v1. A new route gets a line here."""
