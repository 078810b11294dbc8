"""nvlenv: an NVL72 GPU cluster as a Gymnasium environment, placement policies, and their export to a real cluster."""
