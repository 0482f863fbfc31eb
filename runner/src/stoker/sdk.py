"""Submitting from Python: the bridge to the Kubeflow SDK, and sessions, by their public names."""

from stoker.sessions.python import end_session, start_session
from stoker.submit.sdk import find_runtime, train, train_arguments

__all__ = ["end_session", "find_runtime", "start_session", "train", "train_arguments"]
