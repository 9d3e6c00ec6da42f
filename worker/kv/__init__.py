"""The KV pool's accounting: pages, page tables and the prefix cache. No tensors."""
