"""Takes a run's result further: merges it, sends it on, evaluates it, asks it."""
