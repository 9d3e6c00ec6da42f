"""Logits to tokens: filters, penalties, and a generator keyed by (seed, index)."""
