"""GET /openapi.json: the API as OpenAPI 3.1 says it, from the structs that parse requests.

So bounds are stated once, and a client generated from it knows those that the server checks.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from tokenizer_service.openai.logprobs import Json
from tokenizer_service.openai.schema import ChatRequest, CompletionRequest
from tokenizer_service.openai.tokenize import DetokenizeRequest, TokenizeRequest

BODIES: Mapping[str, type[Struct]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/v1/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/v1/detokenize": DetokenizeRequest,
}
"""POST path → what its body is."""
STREAMS = ("/v1/chat/completions", "/v1/completions")
METRICS = "/metrics"
READS = (
    *("/v1/models", "/v1/models/{model}", "/version", METRICS, "/model_info", "/server_info"),
    "/activity",
    *("/health", "/health/ready", "/ready", "/health/live", "/live", "/openapi.json"),
)
"""GET paths."""

ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def document(version: str) -> Json:
    """Return the description; `version` is the package's."""
    kinds = list(dict.fromkeys(BODIES.values()))
    template = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components(kinds, ref_template=template)
    by_kind = dict(zip(kinds, schemas, strict=True))
    paths: Json = {path: {"get": _read(path)} for path in READS}
    paths |= {path: {"post": _post(path, by_kind[kind])} for path, kind in BODIES.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tandem", "version": version},
        "paths": paths,
        "components": {"schemas": components | {"Error": ERROR}},
    }


def _read(path: str) -> Json:
    kind = "text/plain" if path == METRICS else "application/json"
    described: Json = {"responses": _responses(kind)}
    if path.endswith("{model}"):
        name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        described["parameters"] = [name]
    return described


def _post(path: str, body: Mapping[str, object]) -> Json:
    kinds = ["application/json"] + ["text/event-stream"] * (path in STREAMS)
    content = {"application/json": {"schema": body}}
    return {
        "requestBody": {"required": True, "content": content},
        "responses": _responses(*kinds),
    }


def _responses(*kinds: str) -> Json:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "200": {"description": "the answer", "content": {kind: {} for kind in kinds}},
        "default": {"description": "why there is none", "content": error},
    }
