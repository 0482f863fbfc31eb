"""A read-only web page of runs, their curves, and serving releases."""
