"""Production realities, one command and one page each: `python -m agents.study NAME`."""
