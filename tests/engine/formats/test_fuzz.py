"""Whatever a file holds, its reader answers with a result or with one line that says what is wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvlenv.common.errors import InputError
from nvlenv.engine.formats.document import read_documents
from nvlenv.engine.formats.kueue import make_assignment, parse_assignment, to_v1beta1, to_v1beta2
from nvlenv.engine.formats.load import load_snapshot, parse_jobs, parse_snapshot, read_snapshot
from nvlenv.engine.formats.options import Options

CASES = Path(__file__).parents[2] / "cases" / "engine"
WORDS = ["-1", "0", "1e999", "9" * 50, "[", "a/b", "gpu:x", "node[1-", "[]", "{}", "1", "\ud800", "true", "-", "=", ","]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(WORDS),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def values_of(name: str) -> list[Any]:
    return [document.value for document in read_documents(name, (CASES / name).read_text())]


def sites(value: Any) -> list[tuple[Any, Any]]:
    """Every place of a document: its container and the key there."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *sites(value[key]))]


@st.composite
def mutated(draw: st.DrawFn, documents: list[Any]) -> str:
    """The documents as JSON, with a few places overwritten, removed or doubled."""
    changed = copy.deepcopy(documents)
    for _ in range(draw(st.integers(1, 3))):
        places = sites(changed)
        if not places:
            break
        container, key = places[draw(st.integers(0, len(places) - 1))]
        action = draw(st.sampled_from(["overwrite", "overwrite", "remove", "double"]))
        if action == "overwrite":
            container[key] = draw(JUNK)
        elif action == "remove":
            del container[key]
        elif isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        else:
            container[draw(st.text(max_size=4))] = copy.deepcopy(container[key])
    return "\n".join(json.dumps(document) for document in changed)


@st.composite
def garbled(draw: st.DrawFn, text: str) -> str:
    """The text with a few pieces of it replaced."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 8)))
        text = text[:start] + draw(st.one_of(st.text(max_size=4), st.sampled_from(WORDS))) + text[end:]
    return text


def answers(read: Callable[[], object]) -> None:
    """Run a reader: it returns, or raises `InputError` with a message of one line."""
    try:
        read()
    except InputError as error:
        assert len(str(error).splitlines()) == 1


ITEMS = values_of("kubernetes/kubectl.json")[0]["items"]
CLUSTER = [
    {"apiVersion": "v1", "kind": "List", "items": [*ITEMS[:4], *ITEMS[13:20], *ITEMS[-8:]]},
    *values_of("kubernetes/kueue.yaml"),
]
LONG_FORM = [load_snapshot(CASES / "slurm/topology.conf", CASES / "slurm/sinfo.txt").as_json()]
PODS = [("block-a", "rack-1", f"rack-1-n{number}") for number in (1, 1, 2, 5)]
ASSIGNMENTS = [
    write(make_assignment(levels, pods))
    for write in (to_v1beta1, to_v1beta2)
    for levels, pods in (
        (("block", "rack", "kubernetes.io/hostname"), PODS),
        (("block", "rack"), [pod[:2] for pod in PODS] + [("block-b", "rack-7")]),
    )
]
JOBS = [
    values_of(name)
    for name in (
        "kubernetes/job.yaml",
        "kubernetes/jobset.yaml",
        "kubernetes/workload.yaml",
        "kubernetes/pod_group.yaml",
        "job.json",
    )
]


@FUZZ
@given(mutated(CLUSTER))
def test_kubernetes_and_kueue_objects(text: str) -> None:
    answers(lambda: parse_snapshot(text))


@FUZZ
@given(st.one_of(mutated(values_of("cluster.json")), mutated(LONG_FORM)))
def test_own_json(text: str) -> None:
    answers(lambda: parse_snapshot(text))


@FUZZ
@given(mutated(values_of("slurm/topology.yaml")), st.just((CASES / "slurm/scontrol.txt").read_text()).flatmap(garbled))
def test_slurm_topology_yaml_and_scontrol(topology: str, states: str) -> None:
    answers(lambda: read_snapshot([("topology.yaml", topology), ("scontrol.txt", states)], Options()))


@FUZZ
@given(garbled((CASES / "slurm/topology.conf").read_text()), garbled((CASES / "slurm/sinfo.txt").read_text()))
def test_slurm_topology_conf_and_sinfo(topology: str, states: str) -> None:
    answers(lambda: read_snapshot([("topology.conf", topology), ("sinfo.txt", states)], Options()))


@FUZZ
@given(st.one_of(*(mutated(documents) for documents in JOBS)))
def test_job_documents(text: str) -> None:
    answers(lambda: parse_jobs(text))


@FUZZ
@given(garbled((CASES / "slurm/train.sbatch").read_text()))
def test_batch_scripts(text: str) -> None:
    answers(lambda: parse_jobs(text))


@FUZZ
@given(st.one_of(*(mutated([data]) for data in ASSIGNMENTS)))
def test_assignments(text: str) -> None:
    for line in text.splitlines():
        answers(lambda line=line: parse_assignment(json.loads(line)))


@pytest.mark.parametrize("name", ["kubernetes/kueue.yaml", "kubernetes/job.yaml", "kubernetes/pod_group.yaml"])
@FUZZ
@given(st.data())
def test_garbled_yaml(name: str, data: st.DataObject) -> None:
    text = data.draw(garbled((CASES / name).read_text()))
    answers(lambda: parse_jobs(text))
    answers(lambda: parse_snapshot(text))


@FUZZ
@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    answers(lambda: parse_snapshot(text))
    answers(lambda: parse_jobs(text))
