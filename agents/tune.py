"""Search for settings on the validation workloads.

    python -m agents.tune baselines --scenario lab-16
    python -m agents.tune ppo --trials 40 ppo.batch_size=2048

The first finds the best rule of a scenario and writes it to configs/baselines.yaml, where the rest of the project reads
it: the bar that a learned policy has to clear (see `agents.search.tuning`). The second searches PPO's settings (see
`agents.search.ppo`).
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from agents.evaluation.compare import versions
from agents.evaluation.episodes import evaluation_scenario
from agents.evaluation.fanout import fan_out
from agents.search.tuning import SPLIT, RuleSearch, entry_of, write_entry
from nvlenv.common.commandline import command, option, parse_command
from nvlenv.common.config import config_names
from nvlenv.common.errors import InputError
from nvlenv.envs.scenario import scenario_names
from nvlenv.policies.resolver import BASELINES


@dataclass(frozen=True)
class TuneRulesOptions:
    """Find the best heuristic of a scenario."""

    scenario: str = option(f"a YAML file or one of {', '.join(scenario_names())}", default="lab-16")
    overrides: tuple[str, ...] = option(
        "settings of the scenario, such as workload.load=0.9",
        default=(), flags=("--set",), nargs="*", metavar="KEY=VALUE",
    )  # fmt: skip
    workloads: int = option("validation workloads", default=64, least=2)
    seed: int = option("of the workloads", default=0, least=0)
    workers: int = option("processes, 0 for all cores", default=1, least=0)
    ray: bool = option("processes on the Ray cluster that RAY_ADDRESS names", default=False)
    out: Path = option("file", default=Path("configs") / BASELINES)
    quiet: bool = option("no progress bars", default=False)


@dataclass(frozen=True)
class TunePPOOptions:
    """Find better settings for training."""

    overrides: tuple[str, ...] = option(
        "settings of every trial, such as steps=200000", default=(), positional=True, nargs="*", metavar="KEY=VALUE"
    )
    config: str = option(f"a YAML file or one of {', '.join(config_names('train'))}", default="default")
    trials: int = option("in all, the config as it is and those of earlier calls included", default=40, least=2)
    folder: Path = option("of the study; the same one goes on", default=Path("checkpoints/tune-ppo"))
    seed: int = option("of what is tried", default=0, least=0)
    workers: int = option("trials at a time", default=1, least=1)
    ray: bool = option("workers on the Ray cluster that RAY_ADDRESS names", default=False)
    workloads: int = option("to compare the winner on", default=64, least=1)
    out: Path = option("file", default=Path("configs/train/tuned.yaml"))


def tune_rules(options: TuneRulesOptions, how: str) -> None:
    """Search, and put the winner into the file with `how` it was found."""
    scenario = evaluation_scenario(options.scenario, options.overrides)
    with fan_out(options.workers, options.ray) as mapped:
        search = RuleSearch(scenario, options.workloads, options.seed, options.quiet, mapped)
        best = search.run()
    entry = {
        **entry_of(search, best),
        "split": SPLIT,
        "workloads": options.workloads,
        "seed": options.seed,
        "warmup_hours": scenario.episode.warmup_hours,
        "scenario_digest": scenario.digest(),
        "command": how,
        "versions": versions(),
    }
    write_entry(options.out, scenario.name, entry)
    print(f"{scenario.name}: {best.name} (cost {entry['cost']['mean']:.3f}), written to {options.out}")


def tune_ppo(options: TunePPOOptions, how: str) -> None:
    """Search PPO's settings, compare the winner with the config as it is, and write it down if it wins."""
    try:
        from agents.search.ppo import PPOSearch, search_settings
    except ModuleNotFoundError as error:
        raise InputError("tune ppo", "", f"no package {error.name}", "pip install 'nvlenv[tune]'") from None
    search = PPOSearch(options.config, options.overrides, options.folder, options.trials, options.seed)
    search_settings(search, options.workers, options.ray, options.workloads, options.out, how)


@command
def main(argv: list[str]) -> None:
    """Search for the best rule, or for PPO's settings."""
    kinds = {"baselines": TuneRulesOptions, "ppo": TunePPOOptions}
    options = parse_command(kinds, argv, "python -m agents.tune", __doc__)
    how = "python -m agents.tune " + shlex.join(argv)
    if isinstance(options, TuneRulesOptions):
        tune_rules(options, how)
    else:
        tune_ppo(options, how)


if __name__ == "__main__":
    sys.exit(main())
