"""Policies: Decision -> Action. `resolver` turns a name or a file into one."""
