"""Reads a live cluster with the user's own rights: what runs, why it does not, its logs and its results."""
