"""TRL: what it is told, what that means, what could go wrong, and its trainers."""
