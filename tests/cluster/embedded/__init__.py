"""The embedded provider: a Kubernetes cluster on this machine without a container engine."""

from .provider import EmbeddedProvider

__all__ = ["EmbeddedProvider"]
