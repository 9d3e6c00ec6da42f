"""Latency estimators that policies ask: separate from policies, built from profiles."""
