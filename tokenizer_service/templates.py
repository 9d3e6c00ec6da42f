"""Renders a model's chat template: a program from a model file, run as one that is not trusted.

Sandboxed (no attributes that reach the interpreter, nothing that mutates its arguments) and
bounded in executed lines, because a thread cannot be killed and a template may loop. Clients never
supply a template. What templates may call is what the reference library gives them.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenizer_service.limits import MAX_TEMPLATE_PRODUCT, MAX_TEMPLATE_STEPS

FILE = "<chat template>"


class TemplateRefusedError(Exception):
    """The template does not take these messages, or is no template. The message is for clients."""


class _StepsSpent(BaseException):
    """More lines executed than allowed. No Exception, so that no template code can catch it."""


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with bounds on the operators that make something large out of little."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            _check_power(left, right)
        else:
            _check_product(left, right)
            _check_product(right, left)
        return super().call_binop(context, operator, left, right)


def _check_product(items: object, times: object) -> None:
    if not isinstance(items, str | Sequence) or not isinstance(times, int):
        return
    if len(items) * times > MAX_TEMPLATE_PRODUCT:
        raise SecurityError(f"a product of more than {MAX_TEMPLATE_PRODUCT} items")


def _check_power(base: object, exponent: object) -> None:
    if not isinstance(base, int) or not isinstance(exponent, int):
        return
    if base.bit_length() * exponent > MAX_TEMPLATE_PRODUCT:
        raise SecurityError(f"a power of more than {MAX_TEMPLATE_PRODUCT} bits")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusedError(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


class _StepLimit:
    """Counts lines of template code in this thread, by the interpreter's trace hook."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._enter_frame)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _enter_frame(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename == FILE else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _StepsSpent
        return self._line


class ChatTemplate:
    """A compiled template. Thread-safe."""

    def __init__(
        self, source: str, *, bos: str, eos: str, max_steps: int = MAX_TEMPLATE_STEPS
    ) -> None:
        """Compile. `bos`, `eos`: texts of the tokens. Raises TemplateRefusedError."""
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._known = {"bos_token": bos, "eos_token": eos}
        self._max_steps = max_steps
        try:
            code = environment.compile(source, filename=FILE)
        except TemplateSyntaxError as error:
            raise TemplateRefusedError(
                f"chat template, line {error.lineno}: {error.message}"
            ) from None
        self._template = environment.template_class.from_code(
            environment, code, environment.make_globals(None)
        )

    def render(self, messages: Sequence[Mapping[str, object]]) -> str:
        """Return the prompt that ends where the assistant's turn begins.

        Raises TemplateRefusedError.
        """
        context = {"messages": messages, "add_generation_prompt": True, **self._known}
        try:
            with _StepLimit(self._max_steps):
                return self._template.render(context)
        except _StepsSpent:
            raise TemplateRefusedError(
                f"the model's chat template ran over {self._max_steps} steps"
            ) from None
        except (
            TemplateError,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            AttributeError,
            RecursionError,
        ) as error:
            raise TemplateRefusedError(f"the model's chat template failed: {error}") from None
