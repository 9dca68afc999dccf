"""Tuning: find the best values of some factors on this machine, and say what they gain."""
