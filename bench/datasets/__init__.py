"""Data sets on storage: how they are written and read, and proofs of where their bytes came from."""
