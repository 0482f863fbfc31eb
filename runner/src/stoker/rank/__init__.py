"""Acts in one training process, with any framework."""
