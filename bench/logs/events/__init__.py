"""The formats of failure messages that `linkbench explain` reads, one file per format. No other code names a format."""
