"""Makes the images, and the same environment on a host, from locked requirements: with Docker or without."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
