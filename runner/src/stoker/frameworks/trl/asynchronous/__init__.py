"""GRPO on what samplers write meanwhile (`grpo_async`): a subclass of TRL's trainer, and what it needs beside TRL."""
