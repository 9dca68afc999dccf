"""Find the best values of some factors on this machine, and the time that these values save."""
