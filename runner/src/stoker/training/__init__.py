"""Trainers by the public names that plugins give for `Framework.training`."""
