"""After a crash the engine is the one that gave the last answer."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvlenv.common.errors import InputError
from nvlenv.engine.model.answers import Answer
from nvlenv.engine.service import shared
from nvlenv.engine.service.journal import Journal
from nvlenv.engine.service.shared import SharedEngine
from tests.engine.service.clusters import Clock, crashed, racks, serve

NAMES = st.sampled_from(["a", "b", "c", "d"])
NODES = st.sampled_from([f"rack-00{rack}-node-0{node}" for rack in range(3) for node in range(3)])
JOBS = st.builds(
    lambda name, pods, mode, priority: json.dumps(
        {"name": name, "pods": pods, "gpus_per_pod": 4, "mode": mode, "priority": priority}
    ),
    NAMES,
    st.integers(1, 5),
    st.sampled_from(["required", "preferred", "unconstrained"]),
    st.integers(0, 4),
)
OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["place", "place", "enqueue"]), JOBS),
    st.tuples(st.just("finish"), NAMES.map("default/{}".format)),
    st.tuples(st.sampled_from(["cordon", "uncordon", "fail", "repair"]), NODES),
)


def answer_of(engine: SharedEngine, name: str, argument: str) -> Any:
    try:
        answer = engine.do(name, argument)
    except InputError as error:
        return str(error)
    return answer.to_dict() if isinstance(answer, Answer) else answer


@settings(max_examples=30)
@given(
    st.lists(st.tuples(OPERATIONS, st.floats(0, 7200)), max_size=12),
    st.lists(OPERATIONS, min_size=1, max_size=4),
    st.integers(1, 5),
    st.sampled_from(["best-fit", "best-fit+easy+open"]),
)
def test_it_goes_on_as_if_nothing_had_happened(
    history: list[tuple[tuple[str, str], float]], future: list[tuple[str, str]], every: int, policy: str
) -> None:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "CHECKPOINT_LATEST", every)
        before = serve(Path(folder, "before"), racks(3, 3), policy, clock=clock)
        for (name, argument), seconds in history:
            clock.now += seconds
            answer_of(before, name, argument)

        after = serve(crashed(Path(folder, "before"), Path(folder, "after")), policy=policy, clock=clock)

        assert after.snapshot() == before.snapshot()
        for name, argument in future:
            clock.now += 60.0
            assert answer_of(after, name, argument) == answer_of(before, name, argument)
        assert after.snapshot() == before.snapshot()


def test_a_quiet_moment_is_used_for_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "CHECKPOINT_QUIET", 2)
    engine = serve(tmp_path / "before", racks())
    engine.do("place", '{"name": "a", "gpus": 4}')
    engine.tidy(quiet=0.0)  # one operation is not worth it
    engine.do("place", '{"name": "b", "gpus": 4}')
    engine.tidy(quiet=3600.0)  # somebody asks all the time
    assert len(list(Journal(crashed(tmp_path / "before", tmp_path / "busy")).operations())) == 2

    engine.tidy(quiet=0.0)

    assert list(Journal(crashed(tmp_path / "before", tmp_path / "quiet")).operations()) == []
    assert serve(crashed(tmp_path / "before", tmp_path / "after")).snapshot() == engine.snapshot()


def test_a_clock_that_is_set_back_changes_nothing(tmp_path: Path) -> None:
    clock = Clock()
    before = serve(tmp_path / "before", racks(), clock=clock)
    before.do("place", '{"name": "a", "gpus": 4}')
    clock.now -= 3600.0
    before.do("place", '{"name": "b", "gpus": 4}')

    after = serve(crashed(tmp_path / "before", tmp_path / "after"), clock=clock)

    assert after.snapshot() == before.snapshot()


def test_a_policy_that_answers_otherwise_is_not_let_in_after_a_crash(tmp_path: Path) -> None:
    cluster = racks()
    before = serve(tmp_path / "before", cluster, "best-fit")
    before.do("cordon", "rack-000-node-00")  # best fit takes what is nearly full, least allocated the emptiest
    before.do("place", '{"name": "a", "gpus": 4}')

    with pytest.raises(InputError, match=r"operation 2, place.*leaves a checkpoint"):
        serve(crashed(tmp_path / "before", tmp_path / "after"), policy="least-allocated")


def test_it_is_let_in_after_a_stop(tmp_path: Path) -> None:
    before = serve(tmp_path / "journal", racks(), "best-fit")
    before.do("cordon", "rack-000-node-00")
    before.do("place", '{"name": "a", "gpus": 4}')
    jobs = before.snapshot().jobs
    before.close()

    assert serve(tmp_path / "journal", policy="least-allocated").snapshot().jobs == jobs


def test_a_journal_that_has_begun_takes_no_second_cluster(tmp_path: Path) -> None:
    serve(tmp_path / "journal", racks()).close()

    with pytest.raises(InputError, match="newer"):
        serve(tmp_path / "journal", racks())


def test_an_engine_that_breaks_halfway_answers_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = serve(tmp_path / "journal", racks())

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(shared, "OPERATIONS", {**shared.OPERATIONS, "place": broken})
    with pytest.raises(shared.UnavailableError, match="ZeroDivisionError"):
        engine.do("place", '{"gpus": 4}')
    with pytest.raises(shared.UnavailableError, match="restart"):
        engine.do("cordon", "rack-000-node-00")
    assert "ZeroDivisionError" in engine.problem


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.begin({}, {"format": "something else"})
    journal.close()

    with pytest.raises(InputError):
        serve(tmp_path / "journal")
