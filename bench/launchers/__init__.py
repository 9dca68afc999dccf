"""Launchers: one file each, with `LAUNCHER`. They build commands and read environments."""
