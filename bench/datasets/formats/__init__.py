"""The formats of data sets, one file for each."""
