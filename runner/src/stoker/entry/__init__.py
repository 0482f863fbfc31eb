"""Turns other start commands into `stoker run`: launchers on the PATH, and a hook when Python starts."""
