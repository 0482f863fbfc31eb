"""A model server on the cluster, as the tests install, ask and load it."""
