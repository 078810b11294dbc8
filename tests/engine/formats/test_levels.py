"""Which node labels become the levels of a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nvlenv.common.errors import InputError
from nvlenv.engine.formats.load import parse_snapshot
from nvlenv.engine.model.snapshot import ClusterSnapshot

RACK, HOST = "cloud.provider.com/topology-rack", "kubernetes.io/hostname"


def node(name: str, labels: dict[str, str]) -> dict[str, Any]:
    status = {"allocatable": {"nvidia.com/gpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def read(*items: dict[str, Any], **options: Any) -> ClusterSnapshot:
    return parse_snapshot(json.dumps({"kind": "List", "items": items}), "list.json", **options)


RACK_A = node("n0", {RACK: "a", HOST: "n0"})
STRAY = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": "n7"}}


def test_a_node_without_a_level_label_is_refused_by_name() -> None:
    with pytest.raises(InputError) as error:
        read(RACK_A, node("n7", {HOST: "n7"}))
    assert str(error.value).startswith(f"list.json: node n7, metadata.labels[{RACK}]: found no such label")
    assert "skip_unlabelled" in str(error.value)


def test_or_left_out_on_demand() -> None:
    snapshot = read(RACK_A, node("n7", {HOST: "n7"}), STRAY, skip_unlabelled=True)

    assert [node.name for node in snapshot.nodes] == ["n0"]
    assert snapshot.jobs == ()
    assert snapshot.notes[-1] == "left out 1 nodes without a label of every level: n7"


def test_a_cluster_without_topology_labels_is_never_flat() -> None:
    with pytest.raises(InputError, match="no topology label on any GPU node"):
        read(node("n0", {HOST: "n0"}))


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("nvidia.com/gpu.clique", "d6b5e9e5-0d0c-4d6e-b3cb-4c0a3d1f9a11.32766"),
        ("ds.coreweave.com/nvlink.domain", "DH4-016-US-EAST-02A"),
        ("cloud.google.com/gce-topology-subblock", "sb-1"),
        ("topology.k8s.aws/network-node-layer-3", "nn-0123"),
    ],
)
def test_nvlink_domains_seen_in_the_field(label: str, value: str) -> None:
    above = {"cloud.google.com/gce-topology-block": "b", "topology.k8s.aws/network-node-layer-1": "nn-1"}

    snapshot = read(node("n0", {**above, "cloud.google.com/gce-topology-host": "h0", label: value, HOST: "n0"}))

    assert snapshot.nvlink_level == label
    assert snapshot.rack_of(snapshot.nodes[0]).split("/")[-1] == value


def test_levels_given_by_the_user() -> None:
    snapshot = read(node("n0", {"x/pod": "p1", "x/rack": "r1"}), levels=("x/pod", "x/rack"))

    assert snapshot.levels == ("x/pod", "x/rack", HOST)  # the node itself is always a level, by its name if need be
    assert snapshot.nodes[0].path == ("p1", "r1", "n0")
    assert "as given" in snapshot.notes[0]


def test_a_named_host_level_must_be_there() -> None:
    with pytest.raises(InputError, match=r"labels\[kubernetes.io/hostname\]"):
        read(node("n0", {"x/rack": "r1"}), levels=("x/rack", HOST))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"levels": (HOST,)}, "levels"),
        ({"levels": (HOST, RACK)}, "only the last one"),
        ({"levels": (RACK, RACK)}, "distinct"),
        ({"levels": (RACK,), "nvlink_level": "rack"}, "nvlink_level"),
        ({"topology": "nvl72"}, "the name of a Topology"),
    ],
)
def test_bad_options(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        read(RACK_A, **options)
