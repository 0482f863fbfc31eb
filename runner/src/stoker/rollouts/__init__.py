"""Rollouts: samplers write what a trainer learns from, while it learns."""
