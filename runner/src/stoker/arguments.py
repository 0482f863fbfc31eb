"""Flags and layers by their public name: what a plugin's table of flags is made of."""

from stoker.plan.arguments import Flag, FlagTable, Layer, Resolution, Setting, resolve, split_args

__all__ = ["Flag", "FlagTable", "Layer", "Resolution", "Setting", "resolve", "split_args"]
