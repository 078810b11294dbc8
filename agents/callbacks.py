"""What happens besides learning: progress bar, TensorBoard, evaluation on validation workloads, checkpoints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm

from agents.config import TrainConfig
from agents.episodes import Metrics, play_workload, split_scenario, split_seeds
from agents.evaluate import evaluation_scenario
from agents.export import export_policy
from agents.policy import network_of
from agents.statistics import Interval, mean_known, paired
from nvlenv.files import write_json, written_whole

LOGGED = ("cost", "hero_wait", "other_wait", "stall", "slots_16", "goodput", "lost", "evictions")


class Validation:
    """The validation workloads, what the heuristics make of them, and how a policy file compares."""

    def __init__(self, config: TrainConfig) -> None:
        self.scenario = split_scenario(evaluation_scenario(config.scenarios[0], config.overrides), "validation")
        self.seeds = split_seeds(0, "validation", config.evaluation.episodes)
        self.names = list(dict.fromkeys((*config.evaluation.baselines, config.evaluation.reference)))
        played = [play_workload(seed, self.scenario, self.names).metrics for seed in self.seeds]
        self.baselines = {name: [metrics[name] for metrics in played] for name in self.names}

    def play(self, policy: Path) -> list[Metrics]:
        """The metrics of a policy file on every workload."""
        return [play_workload(seed, self.scenario, [str(policy)]).metrics[str(policy)] for seed in self.seeds]

    def compare(self, metrics: list[Metrics]) -> dict[str, Interval]:
        """Paired difference of cost against every baseline."""
        cost = [m["cost"] for m in metrics]
        return {name: paired(cost, [m["cost"] for m in base]) for name, base in self.baselines.items()}


class EvaluationCallback(BaseCallback):
    """Every so many steps: play the validation workloads, log, keep the best policy, save a checkpoint.

    The best policy by mean cost is `policy.npz`; `model.zip` and `state.json` are the latest state to resume from.
    """

    def __init__(self, config: TrainConfig, run: Path, manifest: dict[str, Any], bar: ProgressBar) -> None:
        super().__init__()
        self.config, self.run_folder, self.manifest, self.bar = config, run, manifest, bar
        self.validation = Validation(config)
        self.best, self.next_at = float("inf"), 0
        if (run / "state.json").exists():
            state = json.loads((run / "state.json").read_text("utf-8"))
            self.best, self.next_at = state["best"], state["next_at"]

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self.next_at:
            self.next_at = self.num_timesteps + self.config.evaluation.every_steps
            self.evaluate()

    def _on_training_end(self) -> None:
        self.evaluate()

    def _on_step(self) -> bool:
        return True

    def evaluate(self) -> None:
        latest = self.run_folder / "latest.npz"
        export_policy(network_of(self.model), latest, {**self.manifest, "steps": self.num_timesteps})
        metrics = self.validation.play(latest)
        gaps = self.validation.compare(metrics)
        means = {key: mean_known([m[key] for m in metrics]) for key in LOGGED}
        for key, value in means.items():
            self.logger.record(f"eval/{key}", value)
        for name, gap in gaps.items():
            self.logger.record(f"eval/gap_vs_{name}", gap.mean)
        self.logger.dump(self.num_timesteps)
        reference = self.config.evaluation.reference
        self.bar.show(f"gap to {reference} {gaps[reference]}")
        if means["cost"] < self.best:
            self.best = means["cost"]
            latest.replace(self.run_folder / "policy.npz")
        self.save()

    def save(self) -> None:
        """Save what `--resume` needs."""
        with written_whole(self.run_folder / "model.zip") as part, part.open("wb") as file:
            self.model.save(file)
        write_json(
            self.run_folder / "state.json", {"best": self.best, "next_at": self.next_at, "steps": self.num_timesteps}
        )


class ProgressBar(BaseCallback):
    """Steps done, and how the latest policy compares."""

    def __init__(self, total: int, quiet: bool = False) -> None:
        super().__init__()
        self.total, self.quiet = total, quiet
        self.bar: Any = None

    def _on_training_start(self) -> None:
        self.bar = tqdm(
            total=self.total, initial=self.num_timesteps, unit=" steps", unit_scale=True, disable=self.quiet,
            file=sys.stderr, dynamic_ncols=True, desc="training",
        )  # fmt: skip

    def _on_step(self) -> bool:
        if self.bar is not None:
            self.bar.update(self.training_env.num_envs)
        return True

    def show(self, text: str) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(text)

    def _on_training_end(self) -> None:
        if self.bar is not None:
            self.bar.close()


class ClusterCallback(BaseCallback):
    """What happened in the training episodes, as `cluster/*` and `reward/*`."""

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "clock" not in info:
                continue
            clock = info["clock"]
            hours = max(float(clock["now"]), 1e-9)
            capacity = hours * int(clock["capacity"])
            self.logger.record_mean(
                "cluster/cost", float(clock["waiting"] + clock["slowdown"] + clock["lost"]) / capacity
            )
            self.logger.record_mean("cluster/stall", float(clock["stall"]) / hours)
            self.logger.record_mean("cluster/busy", float(clock["busy"]) / capacity)
            self.logger.record_mean("cluster/evictions", float(clock["evictions"]))
            self.logger.record_mean("cluster/moves", float(clock["moves"]))
            for name, total in info["totals"].items():
                self.logger.record_mean(f"reward/{name}", total / hours)
        return True
