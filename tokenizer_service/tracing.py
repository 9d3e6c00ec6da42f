"""OpenTelemetry spans of requests: off unless `--otlp-traces-endpoint` names a collector.

Names follow the current semantic conventions for generative AI, which are still called development
and have moved before: they are written out here, in one place. No prompt and no output is told.
Needs the extra `otel`; without the flag nothing of it is imported.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tokenizer_service.generation import Generation, Times
from tokenizer_service.openai.errors import ApiError
from tokenizer_service.openai.schema import Request

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

CHAT = "chat"
TEXT = "text_completion"
"""Values of `gen_ai.operation.name`."""
PROVIDER = "tandem"
MISSING = "tracing needs OpenTelemetry: pip install 'tandem-serve[otel]', or leave {flag} out"


class TracingUnavailableError(ValueError):
    """Spans are wanted and cannot be made. The message says what to do."""


class Traced:
    """One request's span. Whoever serves the request says which generation it became."""

    def __init__(self) -> None:
        self.generation: Generation | None = None


class NoTracing:
    """Traces nothing."""

    @contextmanager
    def request(
        self, operation: str, request_id: str, request: Request, headers: Mapping[str, str]
    ) -> Iterator[Traced]:
        """Serve a request."""
        yield Traced()

    def close(self) -> None:
        """Nothing to send."""


class Tracing:
    """Makes a span of each request, with the parts of its way as children."""

    def __init__(self, provider: "TracerProvider", clock: Callable[[], float]) -> None:
        """`clock` gives seconds, monotonic: the generations' clock."""
        from opentelemetry import propagate, trace

        self._provider, self._clock = provider, clock
        self._trace, self._extract = trace, propagate.extract
        self._tracer = provider.get_tracer("tandem")

    @contextmanager
    def request(
        self, operation: str, request_id: str, request: Request, headers: Mapping[str, str]
    ) -> Iterator[Traced]:
        """Serve a request; its span is a child of the caller's, when the caller says so."""
        span = self._tracer.start_span(
            f"{operation} {request.model}",
            context=self._extract({name.lower(): value for name, value in headers.items()}),
            kind=self._trace.SpanKind.SERVER,
            attributes=_asked(operation, request_id, request),
        )
        traced = Traced()
        try:
            yield traced
        except BaseException as error:
            self._failed(span, error)
            raise
        finally:
            if traced.generation is not None:
                self._tell(span, traced.generation)
            span.end()

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _failed(self, span: "Span", error: BaseException) -> None:
        kind = str(error.status) if isinstance(error, ApiError) else type(error).__name__
        span.set_attribute("error.type", kind)
        text = error.message if isinstance(error, ApiError) else ""
        span.set_status(self._trace.StatusCode.ERROR, text)

    def _tell(self, span: "Span", generation: Generation) -> None:
        usage = generation.usage
        span.set_attribute("gen_ai.usage.input_tokens", usage.prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)
        reasons = generation.finish_reasons
        if reasons:
            span.set_attribute("gen_ai.response.finish_reasons", reasons)
        if not generation.over:
            span.set_attribute("error.type", "incomplete")
            span.set_status(self._trace.StatusCode.ERROR, "ended before its output was complete")
        self._parts(span, generation.times)

    def _parts(self, span: "Span", times: Times) -> None:
        """Add what happened in between, as far as it got; times go from our clock to Unix time."""
        offset = time.time() - self._clock()
        marks = (times.arrived, times.admitted, times.first_token, times.ended)
        names = ("admission", "prefill", "decode")
        parent = self._trace.set_span_in_context(span)
        for name, (begin, end) in zip(names, pairwise(marks), strict=True):
            if begin is None or end is None:
                return
            part = self._tracer.start_span(name, parent, start_time=_nanoseconds(begin + offset))
            part.end(_nanoseconds(end + offset))


def exporting(endpoint: str, clock: Callable[[], float]) -> Tracing:
    """Return what sends spans to a collector over OTLP/HTTP. Raises TracingUnavailableError."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise TracingUnavailableError(MISSING.format(flag="--otlp-traces-endpoint")) from None
    provider = TracerProvider(resource=Resource.create({"service.name": "tandem"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return Tracing(provider, clock)


def _asked(operation: str, request_id: str, request: Request) -> dict[str, Any]:
    told = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": request.model,
        "gen_ai.response.model": request.model,
        "gen_ai.response.id": request_id,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.top_p": request.top_p,
        "gen_ai.request.seed": request.seed,
        "gen_ai.request.choice.count": request.choices if request.choices != 1 else None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
