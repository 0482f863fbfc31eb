"""Reads what finished runs have left, and draws it: the report of a run, and comparisons."""
