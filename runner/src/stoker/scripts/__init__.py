"""Training scripts that the pinned trainers lack, each in the shape of the trainer's own; run in training processes."""
