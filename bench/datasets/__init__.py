"""Data sets on storage: how they are written and read, and proof of where their bytes came from."""
