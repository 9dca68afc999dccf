"""How ranks start: one file per launcher, `LAUNCHER` in each; they build commands and read environments."""
