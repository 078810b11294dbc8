"""What happens besides learning: progress bar, TensorBoard, evaluation on validation workloads, checkpoints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Figure, TensorBoardOutputFormat
from tqdm import tqdm

from agents.evaluation.cases import evaluation_scenario, warm_started
from agents.evaluation.episodes import Metrics, Played, play_workload, split_seeds
from agents.evaluation.figures import decay_curve, frontier
from agents.evaluation.statistics import Interval, mean_known, paired
from agents.evaluation.summary import describe_played
from agents.learning.config import TrainConfig
from agents.learning.export import export_policy
from agents.learning.policy import network_of
from nvlenv.common.files import write_json, written_whole

LOGGED = ("cost", "hero_wait", "other_wait", "stall", "slots_16", "goodput", "lost", "evictions")
IMAGES = {"figures/decay": decay_curve, "figures/frontier": frontier}
LAYOUT = {  # of TensorBoard's custom scalars: what to look at, in this order
    "is it getting better": {
        "cost against each heuristic (below 0: better)": ["Multiline", ["eval/gap_vs_.*"]],
        "waits of heroes and of others (h)": ["Multiline", ["eval/hero_wait", "eval/other_wait"]],
        "evictions in a workload": ["Multiline", ["eval/evictions"]],
    },
    "does the cluster stay whole": {
        "free 16-node slots": ["Multiline", ["eval/slots_16"]],
        "time in fragmentation stall": ["Multiline", ["eval/stall", "cluster/stall"]],
    },
    "is it learning": {
        "reward per hour, by term": ["Multiline", ["reward/.*"]],
        "how far each update goes": ["Multiline", ["train/approx_kl", "train/clip_fraction"]],
        "how well values are known": ["Multiline", ["train/explained_variance"]],
        "how random it is": ["Multiline", ["train/entropy_loss"]],
    },
}


class Validation:
    """The validation workloads, what the heuristics make of them, and how a policy file compares."""

    def __init__(self, config: TrainConfig) -> None:
        scenario = evaluation_scenario(config.scenarios[0], config.overrides)
        self.scenario, self.warm_jobs = warm_started(scenario, "validation")
        self.seeds = split_seeds(0, "validation", config.evaluation.episodes)
        self.names = list(dict.fromkeys((*config.evaluation.baselines, config.evaluation.reference)))
        self.played = [play_workload(seed, self.scenario, self.names, warm_jobs=self.warm_jobs) for seed in self.seeds]
        self.baselines = {name: [p.metrics[name] for p in self.played] for name in self.names}

    def play(self, policy: Path) -> list[Played]:
        """A policy file on every workload."""
        return [play_workload(seed, self.scenario, [str(policy)], (), self.warm_jobs) for seed in self.seeds]

    def describe(self, policy: Path, played: list[Played], reference: str) -> dict[str, Any]:
        """All numbers about a policy file and the heuristics, as in results.json."""
        both = [
            Played({**a.metrics, **b.metrics}, {**a.series, **b.series})
            for a, b in zip(self.played, played, strict=True)
        ]
        return describe_played(both, [*self.names, str(policy)], reference)

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

    def _on_training_start(self) -> None:
        for output in self.logger.output_formats:
            if isinstance(output, TensorBoardOutputFormat):
                output.writer.add_custom_scalars(LAYOUT)

    def _on_step(self) -> bool:
        return True

    def evaluate(self) -> None:
        """Play the validation workloads with the policy of now, log, and keep what `--resume` needs."""
        latest = self.run_folder / "latest.npz"
        export_policy(network_of(self.model), latest, {**self.manifest, "steps": self.num_timesteps})
        played = self.validation.play(latest)
        metrics = [p.metrics[str(latest)] for p in played]
        gaps = self.validation.compare(metrics)
        means = {key: mean_known([m[key] for m in metrics]) for key in LOGGED}
        for key, value in means.items():
            self.logger.record(f"eval/{key}", value)
        for name, gap in gaps.items():
            self.logger.record(f"eval/gap_vs_{name}", gap.mean)
        reference = self.config.evaluation.reference
        results, order = self.validation.describe(latest, played, reference), [*self.validation.names, str(latest)]
        for name, draw in IMAGES.items():
            self.logger.record(name, Figure(draw(results, order), close=True), exclude=("stdout", "log", "json", "csv"))
        self.logger.dump(self.num_timesteps)
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
        """Put a short text behind the bar."""
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
