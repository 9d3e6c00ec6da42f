"""GET /: the page and its files, which a browser may use and nothing else."""

import re
from pathlib import Path

import pytest

from tokenizer_service.page import FOLDER, PREFIX, TYPES

from .conftest import Stack

FILES = sorted(path.name for path in FOLDER.iterdir())


async def test_the_page_is_html_and_may_load_nothing_from_elsewhere(stack: Stack) -> None:
    response = await stack.client.get("/")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    sources = set(re.findall(r"\S+-src ([^;]+)", policy))
    assert sources == {"'none'", "'self'"}


@pytest.mark.parametrize("name", [name for name in FILES if name != "index.html"])
async def test_every_file_is_served_with_its_type(stack: Stack, name: str) -> None:
    response = await stack.client.get(PREFIX + name)
    assert response.status == 200
    assert response.content_type == TYPES[Path(name).suffix]
    assert await response.read() == (FOLDER / name).read_bytes()


async def test_what_the_browser_has_is_not_sent_again(stack: Stack) -> None:
    first = await stack.client.get("/")
    again = await stack.client.get("/", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, await again.read()) == (304, b"")
    other = await stack.client.get("/", headers={"If-None-Match": '"other"'})
    assert other.status == 200


async def test_paths_outside_the_folder_are_not_found(stack: Stack) -> None:
    for path in ("/static/", "/static/../page.py", "/static/%2e%2e/page.py", "/static/nothing.js"):
        assert (await stack.client.get(path)).status == 404, path


def test_files_name_only_files_that_are_there_and_no_other_host() -> None:
    for path in FOLDER.iterdir():
        text = path.read_text()
        for name in re.findall(r'(?:from "\./|(?:src|href)="static/)([\w.]+)"', text):
            assert name in FILES, (path.name, name)
        hosts = set(re.findall(r"https?://([\w.]+)", text)) - {"www.w3.org"}
        assert not hosts, path.name  # a namespace is no request
