"""Decides a run from facts and arguments. Pure, but for reading the facts."""
