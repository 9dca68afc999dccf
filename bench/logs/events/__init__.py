"""The formats of failure messages that `bench explain` reads, one file per format. No other code names a format."""
