"""nvlenv: an NVL72 GPU cluster as a Gymnasium environment, placement policies, and their export to a real cluster."""

ENV_ID = "nvlenv/NVL72-v0"


def register_envs() -> None:
    """Register the environments with Gymnasium; called by its plugin entry point and safe to call again."""
    import gymnasium

    if ENV_ID not in gymnasium.registry:
        gymnasium.register(id=ENV_ID, entry_point="nvlenv.env:NVL72Env")
