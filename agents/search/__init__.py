"""Searches without gradients: rules, settings of PPO, evolution."""
