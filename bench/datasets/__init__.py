"""Write and read data sets on storage, and prove where their bytes came from."""
