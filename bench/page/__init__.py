"""Write a run as one HTML page, with its pictures and its data."""
