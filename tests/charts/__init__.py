"""Tests of the charts: what they render, what they refuse, and the files that are generated from them."""
