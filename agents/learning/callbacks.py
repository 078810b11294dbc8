"""What happens besides learning: progress bar, TensorBoard, evaluation on validation workloads, checkpoints."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Figure, TensorBoardOutputFormat
from tqdm import tqdm

from agents.evaluation.episodes import REFERENCES, Played, make_case, play_workload, split_seeds
from agents.evaluation.figures import decay_curve, frontier
from agents.evaluation.statistics import describe_played, mean_known, paired
from agents.learning.model import TrainConfig, network_of
from agents.learning.network import export_policy
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
    """The validation workloads, and what the heuristics make of them."""

    def __init__(self, config: TrainConfig) -> None:
        self.case = make_case(config.scenarios[0], config.overrides, "validation")
        self.seeds = split_seeds(0, "validation", config.evaluation.episodes)
        self.names = config.evaluation.heuristics
        self.played = self.play(self.names, REFERENCES)

    def play(self, names: Sequence[str], references: Sequence[str] = ()) -> list[Played]:
        """Policies and references on every workload."""
        case = self.case
        return [play_workload(seed, case.scenario, names, references, case.warm_jobs) for seed in self.seeds]


class EvaluationCallback(BaseCallback):
    """Every so many steps: play the validation workloads, log, keep the best policy, save a checkpoint.

    The best policy by mean cost is `policy.npz`; `model.zip` and `state.json` are the latest state to resume from. A
    progress bar says how far the run is and how the latest policy compares.
    """

    bar: Any  # of tqdm, while the run learns

    def __init__(self, config: TrainConfig, run: Path, manifest: dict[str, Any], quiet: bool) -> None:
        super().__init__()
        self.config, self.run_folder, self.manifest, self.quiet = config, run, manifest, quiet
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
        self.bar.close()

    def _on_training_start(self) -> None:
        self.bar = tqdm(
            total=self.config.steps, initial=self.num_timesteps, unit=" steps", unit_scale=True, disable=self.quiet,
            file=sys.stderr, dynamic_ncols=True, desc="training",
        )  # fmt: skip
        for output in self.logger.output_formats:
            if isinstance(output, TensorBoardOutputFormat):
                output.writer.add_custom_scalars(LAYOUT)

    def _on_step(self) -> bool:
        self.bar.update(self.training_env.num_envs)
        return True

    def evaluate(self) -> None:
        """Play the validation workloads with the policy of now, log, and keep what `--resume` needs."""
        latest = self.run_folder / "latest.npz"
        export_policy(network_of(self.model), latest, {**self.manifest, "steps": self.num_timesteps})
        pairs = zip(self.validation.played, self.validation.play([str(latest)]), strict=True)
        both = [Played({**a.metrics, **b.metrics}, {**a.series, **b.series}) for a, b in pairs]
        order, reference = [*self.validation.names, str(latest)], self.config.evaluation.reference
        costs = {name: [p.metrics[name]["cost"] for p in both] for name in order}
        gaps = {name: paired(costs[str(latest)], costs[name]) for name in self.validation.names}
        means = {key: mean_known([p.metrics[str(latest)][key] for p in both]) for key in LOGGED}
        for name, value in {**means, **{f"gap_vs_{name}": gap.mean for name, gap in gaps.items()}}.items():
            self.logger.record(f"eval/{name}", value)
        results = describe_played(both, order, reference)
        for name, draw in IMAGES.items():
            self.logger.record(name, Figure(draw(results, order), close=True), exclude=("stdout", "log", "json", "csv"))
        self.logger.dump(self.num_timesteps)
        self.bar.set_postfix_str(f"gap to {reference} {gaps[reference]}")
        if means["cost"] < self.best:
            self.best = means["cost"]
            latest.replace(self.run_folder / "policy.npz")
        self.save()

    def save(self) -> None:
        """Save what `--resume` needs."""
        with written_whole(self.run_folder / "model.zip") as part, part.open("wb") as file:
            self.model.save(file)
        state = {"best": self.best, "next_at": self.next_at, "steps": self.num_timesteps}
        write_json(self.run_folder / "state.json", state)


class ClusterCallback(BaseCallback):
    """What happened in the training episodes, as `cluster/*` and `reward/*`."""

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "clock" not in info:
                continue
            clock, hours = info["clock"], max(float(info["clock"]["now"]), 1e-9)
            capacity = hours * int(clock["capacity"])
            means = {
                "cluster/cost": float(clock["waiting"] + clock["slowdown"] + clock["lost"]) / capacity,
                "cluster/stall": float(clock["stall"]) / hours,
                "cluster/busy": float(clock["busy"]) / capacity,
                "cluster/evictions": float(clock["evictions"]),
                "cluster/moves": float(clock["moves"]),
                **{f"reward/{name}": total / hours for name, total in info["totals"].items()},
            }
            for name, value in means.items():
                self.logger.record_mean(name, value)
        return True
