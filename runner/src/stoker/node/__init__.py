"""Acts on one pod: checks, torchrun as a child process, signals, and the exit code."""
