"""Launchers, one per file, as its `LAUNCHER`. They build commands and read ranks' variables."""
