"""The description of the API has every path, every bound, and no reference to nothing."""

from collections.abc import Iterator
from typing import Any

from tokenizer_service import app
from tokenizer_service.page import is_page

from .conftest import Stack


async def described(stack: Stack) -> Any:
    response = await stack.client.get("/openapi.json")
    assert response.status == 200
    return await response.json()


async def test_every_route_is_described_and_nothing_else(stack: Stack) -> None:
    routes = {
        (route.resource.canonical, route.method.lower())
        for route in app.build(stack.gateway).router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    routes = {(path, method) for path, method in routes if not is_page(path)}
    paths = (await described(stack))["paths"]
    assert {(path, method) for path, methods in paths.items() for method in methods} == routes


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


async def test_every_reference_leads_somewhere(stack: Stack) -> None:
    document = await described(stack)
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    used = set(references(document))
    assert used
    assert used <= known


async def test_bounds_are_those_that_are_checked(stack: Stack) -> None:
    schemas = (await described(stack))["components"]["schemas"]
    chat = schemas["ChatRequest"]
    assert set(chat["required"]) == {"model", "messages"}
    choices = next(kind for kind in chat["properties"]["n"]["anyOf"] if kind["type"] == "integer")
    assert (choices["minimum"], choices["maximum"]) == (1, 8)
    assert (await stack.chat(n=9)).status == 400
