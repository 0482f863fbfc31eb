"""Whole weights of a policy that still trains: files of versions, and the replicas that take them in place."""
