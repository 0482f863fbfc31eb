"""The bridge to the Kubeflow SDK by its public name."""

from stoker.submit.sdk import find_runtime, train, train_arguments

__all__ = ["find_runtime", "train", "train_arguments"]
