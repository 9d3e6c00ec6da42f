"""Log-probabilities as the two endpoints write them."""

from collections.abc import Sequence

from tokenizer_service.logprobs import Candidate, DrawnToken

Json = dict[str, object]


def chat_logprobs(tokens: Sequence[DrawnToken] | None) -> Json | None:
    """Return a chat choice's `logprobs`."""
    if tokens is None:
        return None
    content = [
        _candidate(token.drawn) | {"top_logprobs": [_candidate(other) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _candidate(token: Candidate) -> Json:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}


def completion_logprobs(tokens: Sequence[DrawnToken] | None) -> Json | None:
    """Return a text choice's `logprobs`; the drawn token is among the top ones, as OpenAI's."""
    if tokens is None:
        return None
    return {
        "tokens": [token.drawn.text for token in tokens],
        "token_logprobs": [token.drawn.logprob for token in tokens],
        "top_logprobs": [
            {other.text: other.logprob for other in (token.drawn, *token.top)} for token in tokens
        ],
        "text_offset": [token.offset for token in tokens],
    }
