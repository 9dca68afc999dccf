"""Interconnect benchmark suite: measures the links between GPUs, hosts and nodes."""

__version__ = "0.1.0"
