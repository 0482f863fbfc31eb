"""The environment of the trl image: these layers need torch, transformers and PEFT alone."""

from runner.tests.integration.conftest import trainer_python

__all__ = ["trainer_python"]
