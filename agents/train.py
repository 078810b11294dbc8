"""Train a placement policy with PPO, compare it with heuristics, and export it.

    python -m agents.train                          the default scenario, at most ten minutes on two cores
    python -m agents.train --trace jobs.csv.gz      on a job trace (formats: python -m nvlenv.workload describe --help)
    python -m agents.train steps=500000 seed=3      any setting of configs/train/default.yaml
    python -m agents.train --resume checkpoints/RUN

Everything of a run goes to one folder under checkpoints/: the resolved config, versions, TensorBoard log, the latest
state, the best policy so far (policy.npz), the table and figures at the end.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv

from agents.evaluation.compare import compare_on_scenario, versions
from agents.evaluation.episodes import evaluation_scenario, find_policy
from agents.evaluation.figures import draw_set
from agents.evaluation.release import read_results, write_card
from agents.evaluation.tables import Terminal, summary_table
from agents.learning.callbacks import ClusterCallback, EvaluationCallback
from agents.learning.distributed import DistributedPPO, RemoteEnvs
from agents.learning.model import TrainConfig, make_env, make_model, prepare_process, with_baseline
from nvlenv.common.commandline import command, option, parse
from nvlenv.common.config import config_names, find_config, load_config
from nvlenv.common.errors import InputError
from nvlenv.common.files import write_json, write_text
from nvlenv.envs.scenario import load_scenario
from nvlenv.policies.learned import read_policy_file

RUNS = Path("checkpoints")
OF_A_NEW_RUN = ("config", "seed", "trace", "init", "out")  # options that say nothing to a run that goes on


@dataclass(frozen=True)
class TrainOptions:
    __doc__ = __doc__

    overrides: tuple[str, ...] = option(
        "settings of the run, such as ppo.gamma=0.99", default=(), positional=True, nargs="*", metavar="KEY=VALUE"
    )
    config: str | None = option(
        f"a YAML file or one of {', '.join(config_names('train'))} (default: default)", default=None
    )
    seed: int | None = option("of the run (default: the config's, 0)", default=None)
    trace: Path | None = option(
        "replay windows of this job trace instead of the generator", default=None, metavar="FILE"
    )
    resume: Path | None = option("continue an interrupted run", default=None, metavar="RUN")
    init: str | None = option(
        "start from this policy file instead of the heuristic prior", default=None, metavar="POLICY"
    )
    out: Path | None = option("folder of the run (default: checkpoints/<scenario>-<time>)", default=None, metavar="RUN")
    distributed: int | None = option(
        "processes that play the simulators, on this machine or on the Ray cluster that RAY_ADDRESS names",
        default=None, metavar="WORKERS",
    )  # fmt: skip
    quiet: bool = option("no progress bars", default=False)


def train(
    config: TrainConfig, run: Path, resume: bool = False, quiet: bool = False, workers: int | None = None
) -> None:
    """Train until config.steps; `workers` processes play (None: this one). A `KeyboardInterrupt` says how to go on."""
    prepare_process(config.threads)
    algorithm: type[MaskablePPO] = MaskablePPO if workers is None else DistributedPPO
    kept = algorithm.load(run / "model.zip", device="cpu") if resume else None
    done = kept.num_timesteps if kept is not None else 0
    env: VecEnv = make_env(config, done) if workers is None else RemoteEnvs(config, workers)
    model = kept or make_model(config, env, algorithm)
    model.set_env(env)
    model.set_logger(configure(str(run / "tensorboard"), ["tensorboard"]))
    scenario = load_scenario(config.scenarios[0], config.overrides)
    about = {"scenario": scenario.name, "scenario_digest": scenario.digest(), "config": config.model_dump(mode="json")}
    evaluation = EvaluationCallback(config, run, about, quiet)
    try:
        callbacks = CallbackList([ClusterCallback(), evaluation])
        model.learn(config.steps - done, callback=callbacks, reset_num_timesteps=not resume)
    except KeyboardInterrupt:
        evaluation.save()
        raise KeyboardInterrupt(f"continue with: python -m agents.train --resume {run}") from None
    finally:
        env.close()


def show_results(config: TrainConfig, run: Path, quiet: bool = False) -> None:
    """The table and figures at the end of a run."""
    scenario = evaluation_scenario(config.scenarios[0], config.overrides)
    settings, names = config.evaluation, [*config.evaluation.heuristics, str(run)]
    results = compare_on_scenario(scenario, names, settings.final_episodes, settings.reference, quiet)
    results["command"] = shlex.join(["python", "-m", "agents.train", *sys.argv[1:]])
    write_json(run / "metrics.json", results)
    pictures = draw_set(results, names, run / "figures")
    write_card(run / "policy.npz", read_results(run))
    terminal = Terminal()
    terminal.print(summary_table(results["summary"], width=terminal.width))
    print(*pictures, sep="\n")
    _, manifest = read_policy_file(run / "policy.npz")
    print(f"policy: {run / 'policy.npz'}, best on validation, of step {manifest['steps']:,}; charts:", end=" ")
    print(f"tensorboard --logdir {run / 'tensorboard'}")


def config_of(options: TrainOptions) -> TrainConfig:
    """The config of a new run. Whatever the run will ask for later is asked for now, before there is a folder."""
    said = [f"{name}={value}" for name in ("seed", "init") if (value := getattr(options, name)) is not None]
    config = load_config(TrainConfig, find_config("train", options.config or "default"), [*options.overrides, *said])
    if options.trace is not None:
        if not options.trace.is_file():
            raise InputError("--trace", "", repr(str(options.trace)), "a readable file")
        workload = f"workload={{kind: trace, path: {options.trace.resolve()}}}"
        name = options.trace.name.split(".")[0]
        config = config.model_copy(update={"overrides": (*config.overrides, workload, f"name={name}")})
    config = with_baseline(config)
    for name in config.scenarios:
        load_scenario(name, config.overrides)
    for name in config.evaluation.heuristics:
        find_policy(name)
    if config.init:
        read_policy_file(config.init)
    return config


def folder_of(config: TrainConfig, out: Path | None) -> Path:
    """Where a new run goes. Raises `InputError` if there is a run already."""
    name = load_scenario(config.scenarios[0], config.overrides).name
    run = out or RUNS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if (run / "config.yaml").exists():
        raise InputError("--out", "", str(run), "a new folder, or --resume to continue the run in it")
    return run


def resumed(options: TrainOptions, run: Path) -> TrainConfig:
    """The config of an interrupted run, with the settings that are given now."""
    if not (run / "model.zip").is_file():
        raise InputError("--resume", "", str(run), "the folder of a run with model.zip in it")
    for name in OF_A_NEW_RUN:
        if getattr(options, name) is not None:
            raise InputError("--resume", "", f"--{name} beside it", "settings alone, such as steps=4000000")
    return load_config(TrainConfig, run / "config.yaml", options.overrides)


@command
def main(argv: list[str]) -> None:
    """Train, or go on with a run, and end with the table and the figures."""
    options = parse(TrainOptions, argv, "python -m agents.train")
    if options.resume is not None:
        config, run = resumed(options, options.resume), options.resume
        train(config, run, True, options.quiet, options.distributed)
    else:
        config = config_of(options)
        run = folder_of(config, options.out)
        existed = run.is_dir()
        try:
            write_text(run / "config.yaml", yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
            write_json(run / "versions.json", versions())
            train(config, run, False, options.quiet, options.distributed)
        except BaseException:
            if not existed and not (run / "model.zip").exists():  # nothing to resume from
                shutil.rmtree(run, ignore_errors=True)
            raise
    show_results(config, run, options.quiet)


if __name__ == "__main__":
    sys.exit(main())
