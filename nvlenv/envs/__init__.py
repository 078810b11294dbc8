"""The environments: scenarios, the batch of simulators, Gymnasium and SB3 classes, reward, pictures."""
