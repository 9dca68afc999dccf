"""Read the failure messages for `linkbench explain`, with one file per format. No other code names a format."""
