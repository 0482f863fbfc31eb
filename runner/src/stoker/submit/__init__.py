"""What a Python user writes: a run as a config, and its TrainJob."""
