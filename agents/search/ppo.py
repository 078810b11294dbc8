"""The search for PPO's settings: `python -m agents.tune ppo`.

A trial is a short training run. Settings are proposed by Optuna's TPE; four times during a trial its policy plays the
validation workloads, and it is given up if it costs more than the median of the others at that point. The first trial
is the config as it is, so that the best is always compared with it: on further validation workloads, paired. Only a
winner whose interval lies below zero is written down.

Everything lies in one folder: journal.log, the study, and the policy of every finished trial. The same command goes on
where it was stopped. Several workers, also on other machines that see the folder, share the study.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState
from stable_baselines3.common.callbacks import BaseCallback

from agents.evaluation.episodes import split_seeds
from agents.evaluation.fanout import fan_out
from agents.evaluation.statistics import Interval, paired
from agents.learning.callbacks import Validation
from agents.learning.model import TrainConfig, make_env, make_model, network_of, prepare_process, with_baseline
from agents.learning.network import export_policy
from nvlenv.common.config import find_config, load_config
from nvlenv.common.errors import InputError
from nvlenv.common.files import make_folder, write_text

NAME = "ppo"
JUDGED = 4  # times in a trial
STARTUP = 8  # trials drawn at random, and never given up
COUNTED = (TrialState.COMPLETE, TrialState.PRUNED)
AS_IT_IS, SETTINGS = "as it is", "settings"  # attributes: of the trial that changes nothing, of the study
N_STEPS, BATCH_SIZES = (64, 128, 256), (512, 1024, 2048, 4096)
LOOSEST_KL = 0.1

Setting = bool | int | float | str | None


def propose(trial: optuna.Trial) -> dict[str, Setting]:
    """What a trial changes, as overrides of a training config."""
    return {
        "ppo.lr_start": trial.suggest_float("ppo.lr_start", 1e-4, 5e-3, log=True),
        "ppo.gamma": 1 - trial.suggest_float("forgotten", 5e-4, 2e-2, log=True),  # per decision
        "ppo.gae_lambda": trial.suggest_float("ppo.gae_lambda", 0.85, 0.99),
        "ppo.entropy": trial.suggest_float("ppo.entropy", 3e-4, 2e-2, log=True),
        "ppo.clip": trial.suggest_float("ppo.clip", 0.1, 0.3),
        "ppo.n_epochs": trial.suggest_int("ppo.n_epochs", 2, 8),
        "ppo.n_steps": trial.suggest_categorical("ppo.n_steps", N_STEPS),
        "ppo.batch_size": trial.suggest_categorical("ppo.batch_size", BATCH_SIZES),
        "ppo.target_kl": trial.suggest_float("ppo.target_kl", 0.01, LOOSEST_KL, log=True),
    }


def as_it_is(config: TrainConfig) -> dict[str, Any]:
    """The point of the search space that the config itself is, as near as the space has it."""
    ppo = config.ppo
    return {
        "ppo.lr_start": ppo.lr_start, "forgotten": 1 - ppo.gamma, "ppo.gae_lambda": ppo.gae_lambda,
        "ppo.entropy": ppo.entropy, "ppo.clip": ppo.clip, "ppo.n_epochs": ppo.n_epochs,
        "ppo.n_steps": min(N_STEPS, key=lambda n: abs(n - ppo.n_steps)),
        "ppo.batch_size": min(BATCH_SIZES, key=lambda n: abs(n - ppo.batch_size)),
        "ppo.target_kl": ppo.target_kl or LOOSEST_KL,
    }  # fmt: skip


@dataclass(frozen=True)
class PPOSearch:
    """A study and the runs it is made of; small enough to be sent to other processes."""

    config: str  # name or file of the training config
    overrides: tuple[str, ...]
    folder: Path
    trials: int
    seed: int

    def settings(self, changes: dict[str, Setting] | None = None) -> TrainConfig:
        """The config of a trial, validated like any other."""
        proposed = [f"{key}={value!r}" for key, value in (changes or {}).items()]
        return with_baseline(load_config(TrainConfig, find_config("train", self.config), [*self.overrides, *proposed]))

    def study(self, worker: int = 0) -> optuna.Study:
        """The study in the folder, or a new one. `InputError` if trials of other settings are in it."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # it warns of Ctrl-C with a traceback
        make_folder(self.folder)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(self.folder / "journal.log"))),
            study_name=NAME,
            sampler=optuna.samplers.TPESampler(n_startup_trials=STARTUP, seed=self.seed + worker),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP),
            load_if_exists=True,
        )
        mine = self.settings().model_dump(mode="json")
        if study.user_attrs.setdefault(SETTINGS, mine) != mine:
            raise InputError("--folder", "", str(self.folder), "a new folder, or the settings of its search")
        study.set_user_attr(SETTINGS, mine)
        return study

    def policy(self, trial: int) -> Path:
        """Where the policy of a trial is kept."""
        return self.folder / f"trial-{trial}.npz"


class TrialEvaluation(BaseCallback):
    """Plays the validation workloads every so many steps, and ends a trial that is worse than most."""

    def __init__(self, trial: optuna.Trial, validation: Validation, steps: int, policy: Path) -> None:
        super().__init__()
        self.trial, self.validation, self.steps, self.policy = trial, validation, steps, policy
        self.judged, self.cost = 0, float("inf")

    def _on_rollout_start(self) -> None:
        part = JUDGED * self.num_timesteps // self.steps
        if self.judged < part < JUDGED:
            self.judge(part)
            if self.trial.should_prune() and AS_IT_IS not in self.trial.user_attrs:
                raise optuna.TrialPruned

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.judge(JUDGED)

    def judge(self, part: int) -> None:
        """Report the cost of the policy after so many parts of the trial."""
        self.judged = part
        export_policy(network_of(self.model), self.policy, {"steps": self.num_timesteps})
        self.cost = float(np.mean(costs_of(self.validation, self.policy)))
        self.trial.report(self.cost, part)


def costs_of(validation: Validation, policy: Path) -> list[float]:
    """The cost of a policy file on every validation workload."""
    return [played.metrics[str(policy)]["cost"] for played in validation.play([str(policy)])]


def run_trial(trial: optuna.Trial, search: PPOSearch, validation: Validation) -> float:
    """Train with the proposed settings. Returns the cost of the last policy."""
    changes = propose(trial)
    config = search.settings(None if AS_IT_IS in trial.user_attrs else changes)  # as it is to the last digit
    model = make_model(config, make_env(config))
    judge = TrialEvaluation(trial, validation, config.steps, search.policy(trial.number))
    model.learn(config.steps, callback=judge)
    return judge.cost


def work(worker: int, search: PPOSearch) -> None:
    """Run trials until the study has as many as it is to have; one of the processes that share it."""
    prepare_process(search.settings().threads)
    study = search.study(worker)
    if len(study.get_trials(deepcopy=False, states=COUNTED)) < search.trials:
        trial = partial(run_trial, search=search, validation=Validation(search.settings()))
        study.optimize(trial, callbacks=[MaxTrialsCallback(search.trials, states=COUNTED)])


def unchanged(study: optuna.Study, *states: TrialState) -> optuna.trial.FrozenTrial | None:
    """The trial of the config as it is, if there is one in such a state."""
    trials = study.get_trials(deepcopy=False, states=states)
    return next((trial for trial in trials if AS_IT_IS in trial.user_attrs), None)


def confirm(search: PPOSearch, best: int, start: int, workloads: int) -> Interval:
    """Best trial less the config as it is, on validation workloads that no trial was judged on."""
    validation = Validation(search.settings())
    judged = len(validation.seeds)
    validation.seeds = split_seeds(0, "validation", judged + workloads)[judged:]
    return paired(costs_of(validation, search.policy(best)), costs_of(validation, search.policy(start)))


def search_settings(search: PPOSearch, workers: int, ray: bool, workloads: int, out: Path, how: str) -> None:
    """Run, or go on with, a search; then compare its winner on so many further workloads, and write it to `out`."""
    search.settings()  # a mistake in them is told before there is a folder
    study = search.study()
    if unchanged(study, TrialState.COMPLETE, TrialState.WAITING) is None:  # or it was interrupted
        study.enqueue_trial(as_it_is(search.settings()), user_attrs={AS_IT_IS: True})
    with fan_out(workers, ray) as mapped:
        list(mapped(partial(work, search=search), range(workers)))
    trials = study.get_trials(deepcopy=False)
    pruned = sum(trial.state == TrialState.PRUNED for trial in trials)
    start = unchanged(study, TrialState.COMPLETE)
    if start is None:
        raise InputError("--trials", "", search.trials, "more: the config as it is had no turn yet")
    best = study.best_trial
    print(f"{len(trials)} trials, {pruned} given up. The config as it is costs {start.value:.3f},")
    print(f"trial {best.number} {best.value:.3f}:")
    changes = propose(optuna.trial.FixedTrial(best.params))  # type: ignore[arg-type]
    for name, value in changes.items():
        print(f"  {name} = {value:.4g}" if isinstance(value, float) else f"  {name} = {value}")
    if best.number == start.number:
        print("nothing is better than the config as it is")
        return
    gap = confirm(search, best.number, start.number, workloads)
    print(f"difference on {workloads} further workloads: {gap} ({gap.verdict})")
    if gap.verdict == "lower":
        before, after = search.settings(), search.settings(changes)
        head = (
            f"# Found by {how}\n"
            f"# in {search.trials} trials of {after.steps:,} steps. Cost less that of the config it started from, on\n"
            f"# {workloads} further validation workloads: {gap}\n"
        )
        settings = {**before.model_dump(mode="json"), "ppo": after.ppo.model_dump(mode="json")}
        write_text(out, head + yaml.safe_dump(settings, sort_keys=False))
        print(f"written to {out}", file=sys.stderr)
