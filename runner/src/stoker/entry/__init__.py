"""How other start commands become `stoker run`: launchers on the PATH, and a hook at Python's start."""
