"""Linters and the repository's own rules, each a pytest test."""
