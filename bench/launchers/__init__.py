"""Build the commands that start ranks, and read ranks' variables.

Each file in this folder defines one launcher as `LAUNCHER`.
"""
