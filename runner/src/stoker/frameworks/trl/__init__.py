"""TRL: reads the user's arguments, decides what to run, checks it, and trains."""
