"""Write and read data sets on storage, and prove whether reads came from the device or from the page cache."""
