"""Debian's Chromium for tests: fetched into the cache without root, and driven over its DevTools protocol."""
