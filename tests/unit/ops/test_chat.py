"""`tandem chat` against a small server of the same API: what is sent, shown and kept."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ops import chat, run_dir


class Api(BaseHTTPRequestHandler):
    """Answers with the number of messages; `fail` is an error, `key` is wanted when it is set."""

    bodies: list[dict[str, Any]] = []
    key = ""

    def log_message(self, *arguments: Any) -> None:
        pass

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def allowed(self) -> bool:
        if self.key and self.headers["Authorization"] != f"Bearer {self.key}":
            self.answer(401, b'{"error": {"message": "which key?"}}')
            return False
        return True

    def do_GET(self) -> None:
        if self.allowed():
            self.answer(200, b'{"data": [{"id": "tiny"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        if not self.allowed():
            return
        if body["messages"][-1]["content"] == "fail":
            self.answer(503, b'{"error": {"message": "full"}}')
            return
        told = [
            {"choices": [{"delta": {"content": "you said "}, "finish_reason": None}]},
            {
                "choices": [
                    {"delta": {"content": str(len(body["messages"]))}, "finish_reason": "stop"}
                ]
            },
            {"choices": [], "usage": {"completion_tokens": 4}},
        ]
        frames = [f"data: {json.dumps(event)}\n\n" for event in told] + ["data: [DONE]\n\n"]
        self.answer(200, "".join(frames).encode(), "text/event-stream")


@pytest.fixture
def api() -> Iterator[type[Api]]:
    kind = type("OneApi", (Api,), {"bodies": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    kind.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield kind
    server.shutdown()
    thread.join()
    server.server_close()


def talk(monkeypatch: pytest.MonkeyPatch, api: type[Api], *lines: str, flags: tuple[str, ...] = ()):
    left = iter(lines)

    def read(prompt: str) -> str:
        for line in left:
            return line
        raise EOFError

    monkeypatch.setattr("builtins.input", read)
    return chat.main(["--url", api.url, *flags])


def test_one_quick_message_is_answered_on_standard_output(api, capsys):
    flags = ["--quick", "hi", "--temperature=0", "--max-tokens=5", "--system-prompt", "be brief"]
    assert chat.main(["--url", f"{api.url}/v1/", *flags]) == 0
    assert capsys.readouterr().out == "you said 2\n"
    sent = api.bodies[0]
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("tiny", 0, 5)
    assert sent["messages"][0] == {"role": "system", "content": "be brief"}
    assert "seed" not in sent


def test_a_conversation_remembers_until_it_begins_anew(monkeypatch, api, capsys):
    assert talk(monkeypatch, api, "one", "two", "", "/what", "/new", "three") == 0
    assert [len(body["messages"]) for body in api.bodies] == [1, 3, 1]
    said = capsys.readouterr()
    assert said.out == "you said 1\nyou said 3\nyou said 1\n"
    assert "4 tokens in" in said.err
    assert chat.HELP in said.err


def test_a_message_that_failed_is_said_and_forgotten(monkeypatch, api, capsys):
    assert talk(monkeypatch, api, "one", "fail", "two", "/exit", "never") == 0
    assert [len(body["messages"]) for body in api.bodies] == [1, 3, 3]
    assert "no answer: status 503" in capsys.readouterr().err


def test_the_key_comes_from_the_environment(monkeypatch, api, capsys):
    api.key = "secret"
    assert chat.main(["--url", api.url, "--quick", "hi"]) == 1
    assert "status 401" in capsys.readouterr().err
    monkeypatch.setenv("TANDEM_API_KEY", "secret")
    assert chat.main(["--url", api.url, "--quick", "hi"]) == 0


def test_nobody_there_is_said_with_the_address(capsys):
    assert chat.main(["--url", "http://127.0.0.1:1", "--quick", "hi"]) == 1
    assert "http://127.0.0.1:1" in capsys.readouterr().err


def test_without_an_address_the_usual_one_is_meant_when_no_server_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr(run_dir, "base_dir", lambda environment: tmp_path)
    assert chat.find() == chat.DEFAULT_URL
