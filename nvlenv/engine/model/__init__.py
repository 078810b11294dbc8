"""The data of the engine: clusters, jobs, settings and answers."""
