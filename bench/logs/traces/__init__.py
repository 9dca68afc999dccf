"""Readers of traces of jobs, one format per file (`logs/step_traces.py`)."""
