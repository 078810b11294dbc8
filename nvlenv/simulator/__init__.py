"""The simulator: arrays, and kernels that turn a workload on a cluster into decisions and carry them out."""
