"""The commands of `python -m nvlenv.engine`, one module each."""
