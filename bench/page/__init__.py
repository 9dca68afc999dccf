"""Page: a run as one HTML file, with its pictures and its data."""
