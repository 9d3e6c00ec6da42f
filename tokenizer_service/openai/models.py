"""GET /v1/models and /v1/models/{id}."""

from tokenizer_service.openai.errors import model_not_found
from tokenizer_service.openai.logprobs import Json
from tokenizer_service.router import Router


def describe(name: str, router: Router, created: int) -> Json:
    """Return one model. Raises ApiError 404 when it is not served."""
    if name not in router.served:
        raise model_not_found(name, router.served)
    known = router.known_model()
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "tandem",
        "root": router.served[0],
        "parent": None,
        "max_model_len": known.max_model_len if known else None,
    }


def list_all(router: Router, created: int) -> Json:
    """Return all names that requests may use."""
    return {
        "object": "list",
        "data": [describe(name, router, created) for name in router.served],
    }
