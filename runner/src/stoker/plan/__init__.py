"""Decides a run from facts and arguments. Everything here is pure, except reading the facts."""
