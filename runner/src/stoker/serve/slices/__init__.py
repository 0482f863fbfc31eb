"""Several engines take turns at one device: a Lease says whose turn it is."""
