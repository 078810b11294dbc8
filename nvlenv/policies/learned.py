"""Policy files: read, write, and the policy function that comes out.

A policy file is a NumPy .npz archive of float64 arrays and a JSON manifest. Nothing in it is ever unpickled; a file
that is damaged, foreign or made for other features is refused with a message that says what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvlenv.common.errors import InputError
from nvlenv.common.files import written_whole
from nvlenv.common.kernel import compiled, kernel
from nvlenv.policies.inference import Weights, Work, copy, infer, shapes, work_space
from nvlenv.policies.observation import N_CLUSTER, N_JOB, N_RACK, SCHEMA_VERSION, observe, schema
from nvlenv.simulator.decision import Action, Decision
from nvlenv.simulator.state import Sim
from nvlenv.simulator.step import advance, step

FORMAT = "nvlenv-policy"
FORMAT_VERSION = 1
LARGEST = 64 * 2**20  # bytes, unpacked: a policy of this kind has some hundred thousand
WIDEST = 1024  # hidden units
Arrays = dict[str, NDArray[np.float64]]


def fingerprint(arrays: Arrays) -> str:
    """SHA-256 over names, shapes and bytes of the arrays."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name], "<f8")
        digest.update(f"{name}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def save_policy(path: str | Path, arrays: Arrays, manifest: dict[str, Any] | None = None) -> None:
    """Write a policy file, whole or not at all. `manifest` adds what is worth knowing: training, metrics, licence."""
    arrays = {name: np.ascontiguousarray(array, "<f8") for name, array in arrays.items()}
    _check_arrays(path, arrays)
    head = {
        **(manifest or {}),
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "schema": schema(),
        "hidden": arrays["in_bias"].size,
        "sha256": fingerprint(arrays),
    }
    text = np.frombuffer(json.dumps(head, sort_keys=True).encode(), np.uint8)
    contents: dict[str, Any] = {"manifest": text, **arrays}
    with written_whole(path) as part, part.open("wb") as file:
        np.savez(file, **contents)


def read_policy_file(path: str | Path) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the manifest of a policy file. Raises `InputError` for anything else."""
    path = Path(path)
    if not path.is_file():
        raise InputError(path, "", "no such file" if not path.exists() else "not a file", "a policy file (.npz)")
    arrays = _read_archive(path)
    manifest = _read_manifest(path, arrays.pop("manifest", None))
    _check_schema(path, manifest.get("schema"))
    _check_arrays(path, arrays)
    if manifest.get("sha256") != fingerprint(arrays):
        raise InputError(path, "sha256", "arrays that do not match it", "a file as it was written")
    return arrays, manifest


def _read_archive(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > LARGEST:
                raise InputError(path, "", f"{size} bytes unpacked", f"at most {LARGEST}")
            if (damaged := archive.testzip()) is not None:
                raise InputError(path, damaged, "a damaged entry", "a file as it was written")
        with np.load(path, allow_pickle=False) as data:
            contents = {name: data[name] for name in data.files}
    except InputError:
        raise
    except Exception as error:  # zipfile and NumPy raise a dozen kinds for damaged bytes
        found = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(path, "", f"a file that cannot be read ({found})", "a policy file (.npz)") from None
    for name, content in contents.items():
        if not isinstance(content, np.ndarray):  # NumPy hands out the bytes of what has no header of its own
            raise InputError(path, name, "bytes without the header of an array", "an array")
    return contents


def _read_manifest(path: Path, text: NDArray[Any] | None) -> dict[str, Any]:
    if text is None or text.dtype != np.uint8 or text.ndim != 1:
        raise InputError(path, "manifest", "none" if text is None else f"an array of {text.dtype}", f"{FORMAT}'s JSON")
    try:
        manifest = json.loads(text.tobytes())
    except ValueError:
        raise InputError(path, "manifest", "text that is not JSON", "JSON") from None
    found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
    if not isinstance(manifest, dict) or found != FORMAT:
        raise InputError(path, "format", repr(found), repr(FORMAT))
    if manifest.get("format_version") != FORMAT_VERSION:
        raise InputError(path, "format_version", manifest.get("format_version"), str(FORMAT_VERSION))
    return manifest


def _check_schema(path: Path, found: Any) -> None:
    """Refuse a file made for other observations, and say which features differ."""
    ours = schema()
    if found == ours:
        return
    if not isinstance(found, dict):
        raise InputError(path, "schema", repr(found), f"version {SCHEMA_VERSION}")
    version = ours.pop("version")
    differing = {part: names for part, names in ours.items() if found.get(part) != names}
    differences = [f"{part}: {_difference(found.get(part), names)}" for part, names in differing.items()]
    what = "; ".join([f"version {found.get('version')}", *differences])
    raise InputError(path, "schema", what, f"the features of version {version}")


def _difference(theirs: Any, ours: list[str]) -> str:
    names = theirs if isinstance(theirs, list) else []
    unknown, missing = [n for n in names if n not in ours], [n for n in ours if n not in names]
    parts = [f"{what} {who}" for what, who in (("unknown", unknown), ("missing", missing)) if who]
    return " and ".join(parts) or "another order"


def _check_arrays(path: str | Path, arrays: Arrays) -> None:
    if set(arrays) != set(Weights._fields):
        raise InputError(path, "arrays", _difference(list(arrays), list(Weights._fields)), "the arrays of a policy")
    hidden = arrays["in_bias"].size
    if not 1 <= hidden <= WIDEST:
        raise InputError(path, "in_bias", f"{hidden} hidden units", f"1 to {WIDEST}")
    for name, shape in shapes(hidden).items():
        if arrays[name].shape != shape or arrays[name].dtype != np.float64:
            found = f"{arrays[name].dtype} of shape {arrays[name].shape}"
            raise InputError(path, name, found, f"float64 of shape {shape}")
        if not np.isfinite(arrays[name]).all():
            raise InputError(path, name, "a number that is not finite", "finite numbers")


@compiled
def _play(sim, weights, work):
    alive = advance(sim)
    while alive:
        alive = step(sim, _decide(sim, weights, work))


@kernel
def _decide(sim, weights, work):
    observe(sim, work.racks, work.job, work.cluster)
    return infer(weights, work, sim.mask)


@kernel
def _decide_batch(weights, work, racks, job, cluster, masks, actions):
    for i in range(len(actions)):
        for r in range(racks.shape[1]):
            copy(work.racks[r], racks[i, r])
        copy(work.job, job[i])
        copy(work.cluster, cluster[i])
        actions[i] = infer(weights, work, masks[i])


@dataclass(frozen=True, eq=False)
class LearnedPolicy:
    """A learned policy with the one policy signature; needs NumPy and numba only. Threads may share it."""

    arrays: Arrays = field(repr=False)
    manifest: dict[str, Any] = field(default_factory=dict, repr=False)
    name: str = "learned"

    @cached_property
    def weights(self) -> Weights:
        """The arrays as the kernels take them."""
        return Weights(**{name: np.ascontiguousarray(self.arrays[name]) for name in Weights._fields})

    def _work(self, racks: int) -> Work:
        return work_space(racks, self.arrays["in_bias"].size)

    def __call__(self, decision: Decision) -> Action:
        return int(_decide(decision.sim, self.weights, self._work(decision.layout.racks)))

    def logits(self, decision: Decision) -> NDArray[np.float64]:
        """(2R + 2,) the score of every action, legal or not."""
        work = self._work(decision.layout.racks)
        _decide(decision.sim, self.weights, work)
        return work.logits

    def play(self, sim: Sim) -> None:
        """Play an episode to its end inside compiled code."""
        _play(sim, self.weights, self._work(len(sim.racks)))

    def act_batch(
        self,
        racks: NDArray[np.float32],
        job: NDArray[np.float32],
        cluster: NDArray[np.float32],
        masks: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """Actions (N,) for recorded observations (N, R, F), (N, J), (N, C) and masks (N, 2R + 2)."""
        n, r, _ = racks.shape
        expected = {"racks": (n, r, N_RACK), "job": (n, N_JOB), "cluster": (n, N_CLUSTER), "masks": (n, 2 * r + 2)}
        for name, array in zip(expected, (racks, job, cluster, masks), strict=True):
            if array.shape != expected[name]:
                raise InputError("act_batch", name, f"shape {array.shape}", f"shape {expected[name]}")
        actions = np.zeros(n, np.int64)
        _decide_batch(self.weights, self._work(r), racks, job, cluster, masks, actions)
        return actions


def load_policy(path: str | Path) -> LearnedPolicy:
    """The policy function in a file. Raises `InputError` for a file that is damaged, foreign or of another schema."""
    arrays, manifest = read_policy_file(path)
    return LearnedPolicy(arrays, manifest, Path(path).stem)
