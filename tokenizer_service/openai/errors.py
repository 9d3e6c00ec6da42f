"""Errors as OpenAI's clients read them: nested, with OpenAI's words, and safe to show.

Clients map the status to an exception and read `param` and `code`, so every refusal names the
field it is about. Paths and addresses never leave: they help an attacker, not the caller.
"""

import re
from dataclasses import dataclass

import msgspec

from protocol.data_link import FailCode

RETRY_AFTER_S = 1
"""For overload and start-up: both pass quickly or not at all."""

_PATH = re.compile(r"(?:/[\w.\-]+){2,}/?")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that is no completion."""

    status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None
    """Seconds after which trying again makes sense; None: it never does."""
    close: bool = False
    """Whether the connection should not be used again."""

    def body(self) -> dict[str, object]:
        """Return what goes into the response, or into an error frame of a stream."""
        return {
            "error": {
                "message": sanitize(self.message),
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def encode(self) -> bytes:
        """Return the body as JSON."""
        return msgspec.json.encode(self.body())


def sanitize(message: str) -> str:
    """Return a message without file paths and memory addresses."""
    return _ADDRESS.sub("0x…", _PATH.sub("…", message))


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request can never work."""
    return ApiError(400, "invalid_request_error", message, param, code)


def unsupported(param: str, what: str) -> ApiError:
    """400: known, but not served; silence would change what the caller gets."""
    return invalid(f"{what} is not supported", param, "unsupported_parameter")


def model_not_found(model: str, known: tuple[str, ...]) -> ApiError:
    """404 for a model that is not served here."""
    message = f"model {model!r} does not exist; served here: {', '.join(known)}"
    return ApiError(404, "not_found_error", message, "model", "model_not_found")


def too_long(tokens: int, limit: int, *, at_least: bool = False) -> ApiError:
    """400 for a prompt that leaves no room for output."""
    message = (
        f"the prompt has {'at least ' if at_least else ''}{tokens} tokens; with one token of "
        f"output the model's context of {limit} tokens would be exceeded"
    )
    return invalid(message, "messages", "context_length_exceeded")


def unavailable(reason: str, *, close: bool = False) -> ApiError:
    """503: not now."""
    return ApiError(
        503,
        "overloaded_error",
        f"not able to serve now: {reason}",
        code="unavailable",
        retry_after_s=RETRY_AFTER_S,
        close=close,
    )


def internal(message: str = "internal error") -> ApiError:
    """500 without details: they are in the log."""
    return ApiError(500, "api_error", message, code="internal_error")


def from_failure(code: FailCode, message: str) -> ApiError:
    """Return the error for a request that a worker gave up."""
    match code:
        case FailCode.INVALID:
            return invalid(message)
        case FailCode.TOO_LONG:
            return invalid(message, code="context_length_exceeded")
        case FailCode.UNKNOWN_MODEL:
            return ApiError(404, "not_found_error", message, "model", "model_not_found")
        case FailCode.OVERLOADED | FailCode.SHUTDOWN | FailCode.DEADLINE:
            return ApiError(
                503, "overloaded_error", message, code=code.value, retry_after_s=RETRY_AFTER_S
            )
        case _:
            return ApiError(500, "api_error", message, code=code.value)
