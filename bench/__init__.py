"""Interconnect benchmark suite: what do the links between GPUs, hosts and nodes really do?"""

__version__ = "0.1.0"
