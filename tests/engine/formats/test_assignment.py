"""Placements as Kueue, Kubernetes and Slurm write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvlenv.common.errors import InputError
from nvlenv.engine.formats import kueue as formats
from nvlenv.engine.formats.kueue import (
    make_assignment,
    node_selectors,
    parse_assignment,
    to_v1beta1,
    to_v1beta2,
)
from nvlenv.engine.formats.slurm import expand_hosts, slurm_node_list
from nvlenv.policies.kueue.types import HOSTNAME, Assignment

NAMES = st.lists(st.text("ab01", max_size=3), min_size=1, max_size=4).map("-".join).filter(bool)


@st.composite
def assignments(draw: st.DrawFn) -> Assignment:
    levels = draw(st.sampled_from([("rack",), ("block", "rack"), (HOSTNAME,), ("rack", HOSTNAME)]))
    paths = draw(st.lists(st.tuples(*[NAMES] * len(levels)), unique=True, max_size=12))
    counts = draw(st.lists(st.integers(1, 3), min_size=len(paths), max_size=len(paths)))
    return Assignment(levels, tuple(zip(sorted(paths), counts, strict=True)))


def hosts(*names: str, count: int = 1) -> Assignment:
    return Assignment((HOSTNAME,), tuple(((name,), count) for name in names))


def size(encoded: dict[str, Any]) -> int:
    return len(json.dumps(encoded["slices"], separators=(",", ":")))


@given(assignments(), st.booleans())
def test_what_is_written_reads_back_the_same(assignment: Assignment, by_prefix: bool) -> None:
    assert parse_assignment(json.loads(json.dumps(to_v1beta2(assignment, by_prefix)))) == assignment
    assert parse_assignment(json.loads(json.dumps(to_v1beta1(assignment)))) == assignment


@given(assignments())
def test_no_prefix_or_suffix_can_grow(assignment: Assignment) -> None:
    for part in to_v1beta2(assignment)["slices"]:
        for individual in (level["individual"] for level in part["valuesPerLevel"] if "individual" in level):
            roots = individual["roots"]
            assert "" not in (individual.get("prefix"), individual.get("suffix"))
            if "" not in roots:
                assert len({root[0] for root in roots}) > 1
                assert len({root[-1] for root in roots}) > 1


@given(assignments())
def test_a_common_value_or_count_stands_once(assignment: Assignment) -> None:
    for part in to_v1beta2(assignment)["slices"]:
        assert part["domainCount"] >= 1
        for level in part["valuesPerLevel"]:
            assert list(level) in (["universal"], ["individual"])
            if "individual" in level:
                assert len(set(level["individual"]["roots"])) > 1
        if "individual" in part["podCounts"]:
            assert len(set(part["podCounts"]["individual"])) > 1


@given(assignments())
def test_splitting_by_prefix_never_makes_the_text_longer(assignment: Assignment) -> None:
    assert size(to_v1beta2(assignment)) <= size(to_v1beta2(assignment, by_prefix=False))


def test_no_domains_are_no_slices() -> None:
    assert to_v1beta2(Assignment((HOSTNAME,), ())) == {"levels": [HOSTNAME], "slices": []}


def test_the_suffix_wins_where_both_would_overlap() -> None:
    (part,) = to_v1beta2(Assignment(("rack",), ((("xyx",), 1), (("xyxyx",), 1))))["slices"]

    assert part["valuesPerLevel"] == [{"individual": {"suffix": "xyx", "roots": ["", "xy"]}}]


def test_racks_of_one_block_share_their_block_value() -> None:
    racks = Assignment(("block", "rack"), ((("b1", "rack-01"), 16), (("b1", "rack-07"), 2)))

    assert to_v1beta2(racks)["slices"] == [
        {
            "domainCount": 2,
            "valuesPerLevel": [{"universal": "b1"}, {"individual": {"prefix": "rack-0", "roots": ["1", "7"]}}],
            "podCounts": {"individual": [16, 2]},
        }
    ]


def test_hosts_of_two_racks_make_two_slices_where_that_is_shorter() -> None:
    names = [f"block-1-rack-{rack}-long-host-name-{node:02d}" for rack in "ab" for node in range(9)]

    parts = to_v1beta2(hosts(*names, count=4))["slices"]

    prefixes = [part["valuesPerLevel"][0]["individual"]["prefix"] for part in parts]
    assert prefixes == ["block-1-rack-a-long-host-name-0", "block-1-rack-b-long-host-name-0"]
    assert [part["podCounts"] for part in parts] == [{"universal": 4}] * 2


def test_runs_are_not_reordered() -> None:
    names = [f"a-very-long-name-of-a-pool-of-machines-{pool}-x{n}" for n in range(3) for pool in ("one", "two")]

    assert [values[0] for values, _ in parse_assignment(to_v1beta2(hosts(*names))).domains] == names


def test_more_than_1000_slices_fall_back_to_shorter_prefixes() -> None:
    # Every host pairs up with its neighbour, which would make 1,200 slices; the part before the rack makes two.
    names = [
        f"{'datacenter' * 4}-{hall}-rack{rack:04d}-{node}" for hall in "ab" for rack in range(600) for node in "01"
    ]

    parts = to_v1beta2(hosts(*names))["slices"]

    assert len(parts) == 2
    assert [part["domainCount"] for part in parts] == [1200, 1200]


def test_without_a_prefix_that_fits_all_hosts_are_one_slice() -> None:
    names = [f"{pool:04d}-{node}" for pool in range(1001) for node in "ab"]

    (part,) = to_v1beta2(hosts(*names))["slices"]

    assert part["domainCount"] == 2002


def test_a_slice_holds_100000_domains() -> None:
    parts = to_v1beta2(hosts(*(f"n{number:06d}" for number in range(100_001))))["slices"]

    assert [part["domainCount"] for part in parts] == [100_000, 1]


def test_slices_of_other_writers_are_read_in_their_order() -> None:
    data = {
        "levels": ["rack"],
        "slices": [
            {
                "domainCount": 2,
                "valuesPerLevel": [{"individual": {"roots": ["r2", "r1"]}}],
                "podCounts": {"individual": [1, 1]},
            },
            {"domainCount": 1, "valuesPerLevel": [{"universal": "r3"}], "podCounts": {"individual": [5]}},
        ],
    }

    assert parse_assignment(data).domains == ((("r2",), 1), (("r1",), 1), (("r3",), 5))


ONE = {"domainCount": 1, "valuesPerLevel": [{"universal": "r"}], "podCounts": {"universal": 1}}
MANY = {**ONE, "domainCount": 100_000}
BAD_ASSIGNMENTS = {
    "no levels": ({"domains": []}, "levels"),
    "neither form": ({"levels": ["rack"]}, "either domains"),
    "both forms": ({"levels": ["rack"], "domains": [], "slices": []}, "either domains"),
    "17 levels": ({"levels": [f"l{n}" for n in range(17)], "domains": []}, "1 to 16"),
    "too few values": ({"levels": ["a", "b"], "domains": [{"values": ["x"], "count": 1}]}, "domains[0].values"),
    "count 0": ({"levels": ["a"], "domains": [{"values": ["x"], "count": 0}]}, "domains[0].count"),
    "no count": ({"levels": ["a"], "domains": [{"values": ["x"]}]}, "found nothing"),
    "levels of a slice": ({"levels": ["a", "b"], "slices": [ONE]}, "one per level"),
    "both kinds of values": (
        {"levels": ["a"], "slices": [{**ONE, "valuesPerLevel": [{"universal": "r", "individual": {"roots": ["r"]}}]}]},
        "either universal or individual",
    ),
    "wrong number of roots": (
        {"levels": ["a"], "slices": [{**ONE, "valuesPerLevel": [{"individual": {"roots": ["r", "s"]}}]}]},
        "one per domain",
    ),
    "wrong number of counts": (
        {"levels": ["a"], "slices": [{**ONE, "podCounts": {"individual": []}}]},
        "one per domain",
    ),
    "an empty value": (
        {"levels": ["a"], "slices": [{**ONE, "valuesPerLevel": [{"individual": {"roots": [""]}}]}]},
        "roots[0]",
    ),
    "1001 slices": ({"levels": ["a"], "slices": [ONE] * 1001}, "at most 1000"),
    "more pods than anyone has": ({"levels": ["a"], "domains": [{"values": ["x"], "count": 2**40}]}, "1000000 pods"),
    "more domains than anyone has": ({"levels": ["a"], "slices": [MANY] * 11}, "in all"),
}


@pytest.mark.parametrize(("data", "told"), BAD_ASSIGNMENTS.values(), ids=BAD_ASSIGNMENTS)
def test_a_bad_assignment_is_refused_with_its_place(data: Any, told: str) -> None:
    with pytest.raises(InputError) as error:
        parse_assignment(data, "answer.json")
    assert told in str(error.value)
    assert str(error.value).startswith("answer.json: ")


def test_a_host_topology_names_hosts_only_in_the_order_of_full_paths() -> None:
    paths = [("b2", "r1", "host-a"), ("b1", "r9", "host-z"), ("b2", "r1", "host-a")]

    assert make_assignment(("block", "rack", HOSTNAME), paths) == Assignment(
        (HOSTNAME,), ((("host-z",), 1), (("host-a",), 2))
    )


def test_other_topologies_name_all_levels() -> None:
    assert make_assignment(("block", "rack"), [("b1", "r1"), ("b1", "r1")]).domains == ((("b1", "r1"), 2),)


RACKS = Assignment(("block", "rack"), ((("b1", "r1"), 2), (("b1", "r2"), 1)))
R1, R2 = {"block": "b1", "rack": "r1"}, {"block": "b1", "rack": "r2"}


def test_selectors_come_by_rank() -> None:
    assert node_selectors(RACKS) == [R1, R1, R2]


@given(assignments())
def test_every_slot_is_handed_out_once(assignment: Assignment) -> None:
    given_out = node_selectors(assignment)

    for values, count in assignment.domains:
        assert given_out.count(dict(zip(assignment.levels, values, strict=True))) == count


def test_the_slurm_node_list() -> None:
    names = [f"rack01-node{number:03d}" for number in range(16, 0, -1)]

    assert slurm_node_list(names) == "rack01-node[001-016]"
    assert slurm_node_list([*names[:2], "login"]) == "login,rack01-node[015-016]"
    with pytest.raises(InputError, match="at least one node"):
        slurm_node_list([])


HOST_NAMES = st.builds("{}{}".format, st.sampled_from(["n", "rack1-n", "a-0b"]), st.text("0129", max_size=4))


@given(st.lists(HOST_NAMES, min_size=1))
def test_a_compressed_list_expands_to_the_same_names(names: list[str]) -> None:
    assert sorted(expand_hosts(slurm_node_list(names))) == sorted(set(names))


@settings(max_examples=30)
@given(st.integers(0, 120), st.integers(1, 60), st.integers(1, 4))
def test_a_gapless_run_of_numbers_is_one_range(first: int, length: int, digits: int) -> None:
    names = [f"n{number:0{digits}d}" for number in range(first, first + length)]

    assert "," not in slurm_node_list(names)


def test_the_limits_are_kueues() -> None:
    assert (formats.MAX_SLICES, formats.MAX_SLICE_DOMAINS, formats.MAX_LEVELS) == (1000, 100_000, 16)
