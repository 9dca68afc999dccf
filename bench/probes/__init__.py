"""Read facts about this machine, without changing any setting."""
