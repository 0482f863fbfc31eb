"""Reinforcement learning from rewards: PPO with a value head, over the policy's own answers."""
