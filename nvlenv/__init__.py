"""nvlenv: an NVL72 GPU cluster as a Gymnasium environment, placement policies, and their export to a real cluster."""

import sys

ENV_ID = "nvlenv/NVL72-v0"
FLAT_ENV_ID = "nvlenv/NVL72Flat-v0"  # the same, its observation one vector, for libraries that want that


def register_envs() -> None:
    """Register the environments with Gymnasium; done by `import nvlenv.envs.env`, and safe to do again."""
    import gymnasium

    for name, kind in ((ENV_ID, "NVL72"), (FLAT_ENV_ID, "NVL72Flat")):
        if name not in gymnasium.registry:
            gymnasium.register(
                id=name,
                entry_point=f"nvlenv.envs.env:{kind}Env",
                vector_entry_point=f"nvlenv.envs.vector:{kind}VectorEnv",
            )


if "gymnasium" in sys.modules:  # else nobody makes environments here, and the engine starts without Gymnasium
    register_envs()
