"""An image in the cluster's registry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Image:
    """The trainer image in the cluster's registry.

    Attributes:
        repository: its name with the registry.
        tag: its tag, which names what it was built from.
    """

    repository: str
    tag: str

    @property
    def reference(self) -> str:
        """What a pod writes in `image`."""
        return f"{self.repository}:{self.tag}"
