"""nvlenv: an NVL72 GPU cluster as a Gymnasium environment, placement policies, and their export to a real cluster."""

import sys

ENV_ID = "nvlenv/NVL72-v0"
FLAT_ENV_ID = "nvlenv/NVL72Flat-v0"  # the same, its observation one vector, for libraries that want that


def register_envs() -> None:
    """Register the environments with Gymnasium; done by `import nvlenv.envs.env`, and safe to do again."""
    import gymnasium
    from gymnasium.wrappers import FlattenObservation

    for name in (ENV_ID, FLAT_ENV_ID):
        if name not in gymnasium.registry:
            wrappers = (FlattenObservation.wrapper_spec(),) if name == FLAT_ENV_ID else ()
            gymnasium.register(id=name, entry_point="nvlenv.envs.env:NVL72Env", additional_wrappers=wrappers)


if "gymnasium" in sys.modules:  # else nobody makes environments here, and the engine starts without Gymnasium
    register_envs()
