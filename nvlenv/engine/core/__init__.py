"""The engine itself: a live cluster in the arrays of the simulator, and the transactions on it."""
