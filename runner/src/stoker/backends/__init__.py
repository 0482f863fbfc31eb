"""Trainer backends: what the runner must know of each training framework, looked up by its label's value."""

from stoker.backends.base import LLMBackend, get_backend, get_registered_backends, register_backend
from stoker.backends.trl import TRLBackend

__all__ = ["LLMBackend", "TRLBackend", "get_backend", "get_registered_backends", "register_backend"]
