"""How a policy learns: settings, network, PPO, workers."""
