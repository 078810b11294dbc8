"""What holds for every placement, whatever the cluster and the request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from nvlenv.policies.kueue.types import (
    HOSTNAME,
    Assignment,
    Failure,
    Gates,
    KueueNode,
    Layer,
    PodSetRequest,
    Repair,
    TopologyMode,
    TopologyRequest,
)
from tests.policies.kueue.kueue_clusters import assign

LEVELS = ("block", "rack", HOSTNAME)
TOPOLOGY = 'topology "default" '

fast = settings(max_examples=100, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Host:
    name: str
    block: str
    rack: str
    gpus: int
    pods: int

    def node(self) -> KueueNode:
        labels = {"block": self.block, "rack": self.rack, HOSTNAME: self.name}
        return KueueNode(self.name, labels, {"gpu": self.gpus, "pods": self.pods})

    def domain(self, level: str) -> tuple[str, ...]:
        return (self.block, self.rack, self.name)[: LEVELS.index(level) + 1]


@st.composite
def clusters(draw: st.DrawFn) -> list[Host]:
    racks = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=3)
    shape = draw(st.lists(racks, min_size=1, max_size=3))
    places = [(b, r, gpus) for b, racks in enumerate(shape) for r, hosts in enumerate(racks) for gpus in hosts]
    names = draw(st.permutations([f"h{number}" for number in range(len(places))]))
    tight = draw(st.sampled_from([110, 110, 2]))
    return [Host(name, f"b{b}", f"r{r}", gpus, tight) for name, (b, r, gpus) in zip(names, places, strict=True)]


@st.composite
def requests(draw: st.DrawFn, modes: Sequence[TopologyMode] = tuple(TopologyMode), layers: int = 3) -> TopologyRequest:
    mode = draw(st.sampled_from([mode for mode in modes if mode != TopologyMode.EMPTY]))
    level = draw(st.integers(0, 2)) if mode in (TopologyMode.REQUIRED, TopologyMode.PREFERRED) else 0
    minimum = 1 if mode == TopologyMode.SLICE_ONLY else 0
    wanted = 0 if mode == TopologyMode.IMPLIED else draw(st.integers(minimum, min(layers, 3 - level)))
    depths = sorted(draw(st.permutations(range(level, 3)))[:wanted])
    size, sizes = 1, list[int]()
    for _ in depths:
        size *= draw(st.integers(1, 3))
        sizes.insert(0, size)
    slices = tuple(Layer(LEVELS[depth], size) for depth, size in zip(depths, sizes, strict=True))
    return TopologyRequest(
        mode, LEVELS[level] if mode in (TopologyMode.REQUIRED, TopologyMode.PREFERRED) else None, slices
    )


gates = st.builds(Gates, mixed_profile=st.booleans(), balanced_placement=st.booleans())


def whole(podset: PodSetRequest) -> int:
    """Pods in whole slices."""
    size = podset.topology.slices[0].size if podset.topology.slices else 1
    return podset.count - podset.count % size


def pods_on(assignment: Assignment | Failure) -> Counter[str]:
    assert isinstance(assignment, Assignment)
    return Counter({values[-1]: count for values, count in assignment.domains})


def by_domain(hosts: Sequence[Host], pods: Counter[str], level: str) -> Counter[tuple[str, ...]]:
    total: Counter[tuple[str, ...]] = Counter()
    for host in hosts:
        total[host.domain(level)] += pods[host.name]
    return +total


def room(host: Host, gpus: int) -> int:
    return min(host.gpus // gpus, host.pods)


def slices_by_domain(hosts: Sequence[Host], podset: PodSetRequest, level: str) -> Counter[tuple[str, ...]]:
    """Brute force: slices that fit in each domain of `level`; for at most one slice layer."""
    slice_level, size = LEVELS[-1], 1
    for layer in podset.topology.slices:
        slice_level, size = layer.level, layer.size
    free = Counter({host.name: room(host, podset.requests["gpu"]) for host in hosts})
    total: Counter[tuple[str, ...]] = Counter({host.domain(level): 0 for host in hosts})
    for domain, pods in by_domain(hosts, free, slice_level).items():
        total[domain[: LEVELS.index(level) + 1]] += pods // size
    return total


@fast
@given(clusters(), requests(), st.integers(0, 20), st.integers(1, 2), gates)
def test_what_is_placed_fits_is_complete_and_keeps_its_promise(
    hosts: list[Host], topology: TopologyRequest, count: int, gpus: int, gates: Gates
) -> None:
    podset = PodSetRequest("job", count, {"gpu": gpus}, topology)
    outcome = assign(LEVELS, [host.node() for host in hosts], [podset], gates)["job"]
    if isinstance(outcome, Failure):
        assert outcome.reason.startswith(TOPOLOGY)
        return
    pods = pods_on(outcome)
    assert all(pods[host.name] <= room(host, gpus) for host in hosts)
    assert all(count > 0 for _, count in outcome.domains)
    assert outcome.pods == whole(podset)
    if topology.mode == TopologyMode.REQUIRED:
        assert topology.level is not None
        assert len(by_domain(hosts, pods, topology.level)) <= 1
    for layer in topology.slices:
        assert all(pods % layer.size == 0 for pods in by_domain(hosts, pods, layer.level).values())


@fast
@given(clusters(), requests(), st.integers(1, 12), gates, st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_never_matters(
    hosts: list[Host], topology: TopologyRequest, count: int, gates: Gates, random: Random
) -> None:
    nodes = [host.node() for host in hosts]
    podsets = [PodSetRequest("job", count, {"gpu": 1}, topology)]
    before = assign(LEVELS, nodes, podsets, gates)
    random.shuffle(nodes)
    assert assign(LEVELS, nodes, podsets, gates) == before


@fast
@given(clusters(), requests(layers=1), st.integers(1, 20), st.integers(1, 2), gates)
def test_a_placement_fails_only_if_it_must_and_says_how_much_fits(
    hosts: list[Host], topology: TopologyRequest, count: int, gpus: int, gates: Gates
) -> None:
    podset = PodSetRequest("job", count, {"gpu": gpus}, topology)
    outcome = assign(LEVELS, [host.node() for host in hosts], [podset], gates)["job"]
    required = topology.mode == TopologyMode.REQUIRED
    rooms = slices_by_domain(hosts, podset, topology.level or LEVELS[0])
    fitting = max(rooms.values()) if required else sum(rooms.values())
    size = topology.slices[0].size if topology.slices else 1
    wanted = count // size
    assert isinstance(outcome, Assignment) == (fitting >= wanted)
    if isinstance(outcome, Failure):
        unit = "slice(s)" if size > 1 else "pod(s)"
        some = f"allows to fit only {fitting} out of {wanted} {unit}"
        none = f"doesn't allow to fit any of {wanted} {unit}"
        full = sum(room(host, gpus) == 0 for host in hosts)
        assert outcome.reason.split(". Total")[0] == TOPOLOGY + (some if fitting else none)
        assert (f". Total nodes: {len(hosts)}; excluded: " in outcome.reason) == (full > 0)


@fast
@given(
    clusters(),
    requests([TopologyMode.REQUIRED, TopologyMode.PREFERRED, TopologyMode.UNCONSTRAINED], layers=1),
    st.integers(1, 12),
    st.integers(1, 2),
    st.integers(1, 3),
    gates,
)
def test_a_leader_and_its_workers_fit_together(
    hosts: list[Host], topology: TopologyRequest, count: int, gpus: int, leader_gpus: int, gates: Gates
) -> None:
    leader = PodSetRequest("leader", 1, {"gpu": leader_gpus}, topology, group="g")
    workers = PodSetRequest("workers", count + 1, {"gpu": gpus}, topology, group="g")
    result = assign(LEVELS, [host.node() for host in hosts], [leader, workers], gates)
    if isinstance(result["workers"], Failure):
        assert result["leader"] == result["workers"]
        return
    led, worked = pods_on(result["leader"]), pods_on(result["workers"])
    assert led.total() == 1
    assert worked.total() == whole(workers)
    for host in hosts:
        assert led[host.name] * leader_gpus + worked[host.name] * gpus <= host.gpus
        assert led[host.name] + worked[host.name] <= host.pods
    if topology.mode == TopologyMode.REQUIRED:
        assert topology.level is not None
        assert len(by_domain(hosts, led + worked, topology.level)) == 1


@fast
@given(clusters(), st.lists(st.tuples(requests(), st.integers(1, 6)), min_size=2, max_size=3), gates)
def test_pod_sets_of_one_workload_never_take_the_same_room(
    hosts: list[Host], wanted: list[tuple[TopologyRequest, int]], gates: Gates
) -> None:
    podsets = [PodSetRequest(f"p{n}", count, {"gpu": 1}, topology) for n, (topology, count) in enumerate(wanted)]
    result = assign(LEVELS, [host.node() for host in hosts], podsets, gates)
    taken: Counter[str] = Counter()
    for outcome in result.values():
        if isinstance(outcome, Assignment):
            taken += pods_on(outcome)
    assert all(taken[host.name] <= room(host, 1) for host in hosts)
    assert not any(isinstance(outcome, Failure) for outcome in list(result.values())[:-1])


@fast
@given(clusters(), requests(layers=1), st.integers(1, 12), gates, st.randoms(use_true_random=False))
def test_surviving_pods_never_move(
    hosts: list[Host], topology: TopologyRequest, count: int, gates: Gates, random: Random
) -> None:
    podset = PodSetRequest("job", count, {"gpu": 1}, topology)
    old = assign(LEVELS, [host.node() for host in hosts], [podset], gates)["job"]
    if isinstance(old, Failure) or not old.domains:
        return
    lost = random.choice(old.domains)[0][-1]
    left = [Host(h.name, h.block, h.rack, h.gpus - pods_on(old)[h.name], h.pods) for h in hosts if h.name != lost]
    new = assign(LEVELS, [host.node() for host in left], [podset], gates, repair=Repair((lost,), {"job": old}))["job"]
    if isinstance(new, Failure):
        return
    kept = pods_on(old)
    moved = kept.pop(lost)
    assert pods_on(new) >= kept
    assert (pods_on(new) - kept).total() <= moved
    if topology.mode == TopologyMode.REQUIRED and not topology.slices:
        assert topology.level is not None
        assert len(by_domain(left, pods_on(new), topology.level)) == 1
