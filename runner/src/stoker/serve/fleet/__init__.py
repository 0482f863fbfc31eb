"""One URL over many replicas: calls that change a server reach all of them, or none."""
