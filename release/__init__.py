"""Publishes images and charts, and says what a registry without a way out must mirror: `python -m release --help`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The repository."""
