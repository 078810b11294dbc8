"""Heuristics composed by name: one packing rule and any modifiers."""
