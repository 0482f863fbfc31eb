"""Stoker's runner: plans, launches and guards one fine-tuning run inside a TrainJob's pods."""

__version__ = "0.1.0"
