"""Kueue's Topology Aware Scheduling, decision for decision; `nvlenv.policies.kueue_tas` is the front door."""
