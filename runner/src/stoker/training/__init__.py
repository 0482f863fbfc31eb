"""What happens inside a training process: a module for each framework runs its own trainer and follows it.

Each has `train(job) -> Outcome` (see :mod:`stoker.training.job`). Only training processes import these modules.
"""
