"""The OpenAI API: schemas, endpoints, errors, server-sent events."""
