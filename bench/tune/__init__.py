"""Find the best values of some factors on this machine, and how much they gain."""
