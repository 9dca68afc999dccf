"""Read traces of jobs, with one format per file (`logs/step_traces.py`)."""
