"""Probes read facts about this machine. They change no setting."""
