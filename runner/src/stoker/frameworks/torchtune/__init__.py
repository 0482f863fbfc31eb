"""TorchTune: reads the user's arguments, decides what to run, checks it, and runs its recipes."""
