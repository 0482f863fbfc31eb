"""The configs and their registry by their public name; docs/guides/python.md shows how to use them."""

from stoker.submit import *  # noqa: F403 - exactly the names that stoker.submit lists
from stoker.submit import __all__ as __all__
