"""One resolver: names, files and functions become policies."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvlenv.common.errors import InputError
from nvlenv.policies.kueue.policy import KueuePolicy
from nvlenv.policies.learned import LearnedPolicy, save_policy
from nvlenv.policies.resolver import fresh_policy, policy_name, resolve_policy
from nvlenv.simulator.decision import Decision
from tests.policies.files import random_arrays


def first(decision: Decision) -> int:
    return int(decision.mask.argmax())


def test_a_function_is_a_policy_as_it_is() -> None:
    assert resolve_policy(first) is first
    assert policy_name(first) == "function"


def test_a_file_is_known_by_its_suffix_or_as_a_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    save_policy(file, random_arrays())

    for policy in (resolve_policy(file), resolve_policy(str(file))):
        assert isinstance(policy, LearnedPolicy)
        assert policy_name(policy) == "mine"
    with pytest.raises(InputError, match=r"absent\.npz"):
        resolve_policy("absent.npz")


def test_only_a_policy_that_plans_is_made_anew() -> None:
    kueue, rule = resolve_policy("kueue-tas"), resolve_policy("best-fit+open")

    assert isinstance(fresh_policy(kueue), KueuePolicy) and fresh_policy(kueue) is not kueue
    assert fresh_policy(rule) is rule and fresh_policy(first) is first
    assert (policy_name(kueue), policy_name(rule)) == ("kueue-tas", "best-fit+open")
