"""Messages about failures that `bench explain` reads, one file per format. Nothing else names a format."""
