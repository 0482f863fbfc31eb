"""One engine that trains and serves the same weights."""
