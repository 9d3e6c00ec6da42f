"""Requests and pool as a scheduler sees them: counts and times, no tokens, no pages."""

from protocol.control_link import PoolState, Progress, RequestView
from worker.core.request import Request, Stay
from worker.kv.pool import PagePool


def pool_state(pool: PagePool) -> PoolState:
    """Return the pool in numbers."""
    return PoolState(total=pool.num_pages, free=pool.free, cached=pool.cached)


def progress(stay: Stay) -> Progress:
    """Return the counts of a request on the device."""
    return Progress(stay.request.ref, stay.computed, len(stay.request.output))


def view(request: Request) -> RequestView:
    """Return one request."""
    submit, stay = request.submit, request.stay
    return RequestView(
        ref=request.ref,
        model=request.model.name,
        tenant=submit.tenant,
        state=request.state,
        prompt_tokens=stay.total if stay else request.known,
        computed=stay.computed if stay else 0,
        cached=request.cached,
        output_tokens=len(request.output),
        max_tokens=request.limit,
        arrival=request.arrival,
        slo=submit.slo,
        priority=submit.priority,
    )
