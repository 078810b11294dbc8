"""Policies: Decision -> Action. `resolver` turns a name or a file into one."""

UNTUNED = "best-fit+easy+open"  # who decides where nobody says otherwise, and no rule was tuned for the scenario
