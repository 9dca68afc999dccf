"""The numbers: pure functions over records."""
