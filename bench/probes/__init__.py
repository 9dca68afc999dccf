"""Facts about this machine. The probes only read; they change no setting."""
