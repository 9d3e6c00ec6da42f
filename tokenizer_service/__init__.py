"""The gateway: HTTP, templates, tokenization and streaming; the only process that speaks HTTP."""
