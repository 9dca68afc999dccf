"""Build the commands that start ranks, and read ranks' variables.

Each file defines one launcher, `LAUNCHER`.
"""
