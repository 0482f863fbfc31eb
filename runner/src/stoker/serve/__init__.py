"""Serving: vLLM's HTTP API, and the adapters of one replica."""
