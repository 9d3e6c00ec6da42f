"""Web pages of other origins read answers only when an operator has allowed them."""

import pytest

from .conftest import MakeStack, Stack

PAGE = "https://chat.example"
ASKS = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "content-type",
}


async def test_by_default_no_page_may_read(stack: Stack) -> None:
    response = await stack.client.get("/v1/models", headers={"Origin": PAGE})
    assert response.status == 200
    assert "Access-Control-Allow-Origin" not in response.headers
    asked = await stack.client.options("/v1/completions", headers=ASKS)
    assert asked.status == 405
    assert "Access-Control-Allow-Origin" not in asked.headers


@pytest.mark.parametrize("allowed", [(PAGE,), ("*",), ("https://other.example", PAGE)])
async def test_a_page_that_is_allowed_reads_answers_and_errors(
    make_stack: MakeStack, allowed: tuple[str, ...]
) -> None:
    stack = await make_stack(allowed_origins=allowed)
    for path, status in (("/v1/models", 200), ("/v1/models/gpt-9", 404), ("/nowhere", 404)):
        response = await stack.client.get(path, headers={"Origin": PAGE})
        assert response.status == status
        assert response.headers["Access-Control-Allow-Origin"] == PAGE
        assert "Retry-After" in response.headers["Access-Control-Expose-Headers"]
        assert response.headers["Vary"] == "Origin"
    asked = await stack.client.options("/v1/completions", headers=ASKS)
    assert asked.status == 204
    assert asked.headers["Access-Control-Allow-Origin"] == PAGE
    assert "POST" in asked.headers["Access-Control-Allow-Methods"]
    assert "Content-Type" in asked.headers["Access-Control-Allow-Headers"]


@pytest.mark.parametrize("origin", ["https://evil.example", f"{PAGE}.evil", "null", ""])
async def test_another_page_may_not(make_stack: MakeStack, origin: str) -> None:
    stack = await make_stack(allowed_origins=(PAGE,))
    for method, path in (("GET", "/v1/models"), ("OPTIONS", "/v1/completions")):
        response = await stack.client.request(method, path, headers=ASKS | {"Origin": origin})
        assert "Access-Control-Allow-Origin" not in response.headers
        assert response.status != 204
