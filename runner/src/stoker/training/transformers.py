"""Follows a trainer on transformers' `Trainer`, by its public name."""

from stoker.frameworks.trl.trainer import train

__all__ = ["train"]
