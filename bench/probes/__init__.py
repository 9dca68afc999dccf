"""What this machine is. Read-only: nothing here changes a setting."""
