"""The GPU worker: system of record for requests, and owner of weights, KV pool and lanes."""
