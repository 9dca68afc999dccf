"""Each module in this package defines one format of data sets."""
