"""Serving: vLLM's HTTP interface, and the adapters of one replica."""
