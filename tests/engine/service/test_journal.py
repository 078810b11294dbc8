"""What was answered is on disk, and nothing but a journal is taken for one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from nvlenv.common.errors import InputError
from nvlenv.engine.service.journal import Journal
from nvlenv.engine.service.shared import SharedEngine, UnavailableError
from tests.engine.service.clusters import crashed, racks, serve

OPERATION = {"name": "finish", "argument": "a", "at": 1.0}


def test_what_is_appended_is_there_after_a_crash(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.begin({"cluster": "c"}, {"jobs": 0})
    journal.append(OPERATION, None, {"gang": {"slots": ["a"]}})
    journal.append(None, None, {"gang": None, "other": {"slots": []}})

    after = Journal(crashed(journal.path, tmp_path / "after"))

    assert after.state() == {"jobs": 0}
    assert [(record.seq, record.operation) for record in after.operations()] == [(1, OPERATION)]
    assert after.plans() == {"other": {"slots": []}}


def test_a_commit_waits_for_the_disk(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")

    settings = {name: journal._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")}

    assert settings == {"journal_mode": "wal", "synchronous": 2}  # 2: FULL, an fsync of the log with every commit


def test_a_checkpoint_takes_the_place_of_operations_and_numbers_go_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.begin({}, 0)
    for _ in range(3):
        journal.append(OPERATION, None)

    journal.checkpoint({"jobs": 3})
    journal.append(OPERATION, None)

    assert journal.state() == {"jobs": 3}
    assert [record.seq for record in journal.operations()] == [4]


def test_a_second_service_is_kept_out(tmp_path: Path) -> None:
    first = Journal(tmp_path / "journal")

    with pytest.raises(InputError, match="locked"):
        Journal(first.path)

    first.close()
    Journal(first.path).close()


@pytest.mark.parametrize(
    "content", [b"not a database, certainly not, by no means whatsoever" * 100, b"SQLite format 3\x00"]
)
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal").write_bytes(content)

    with pytest.raises(InputError, match="journal"):
        Journal(tmp_path / "journal")


def test_another_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "journal")
    other.execute("CREATE TABLE songs (name TEXT)")
    other.commit()
    other.close()

    with pytest.raises(InputError, match="nvlenv-journal/1"):
        Journal(tmp_path / "journal")

    assert sqlite3.connect(tmp_path / "journal").execute("SELECT name FROM sqlite_master").fetchall() == [("songs",)]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unable to open"):
        Journal(tmp_path / "nowhere" / "journal")


def test_a_torn_tail_costs_only_what_was_not_answered(tmp_path: Path) -> None:
    engine = serve(tmp_path / "journal", racks())
    engine.do("place", '{"name": "a", "gpus": 4}')
    engine.do("place", '{"name": "b", "gpus": 4}')
    torn = crashed(tmp_path / "journal", tmp_path / "torn")
    log = torn.with_name("torn-wal")
    log.write_bytes(log.read_bytes()[:-100])  # the last commit was being written

    assert [job.id for job in serve(torn).snapshot().jobs] == ["default/a"]


class Full(Journal):
    """A journal on a disk that fills up."""

    full = False

    def append(self, *arguments: object, **options: object) -> None:
        if self.full:
            raise sqlite3.OperationalError("database or disk is full")
        super().append(*arguments, **options)  # type: ignore[arg-type]


def test_nothing_is_answered_that_is_not_on_disk(tmp_path: Path) -> None:
    journal = Full(tmp_path / "journal")
    engine = SharedEngine(journal, "best-fit", racks())
    engine.do("place", '{"name": "a", "gpus": 4}')

    journal.full = True
    with pytest.raises(UnavailableError, match="full"):
        engine.do("place", '{"name": "b", "gpus": 4}')
    journal.full = False
    with pytest.raises(UnavailableError):  # what is in memory is ahead of the journal
        engine.snapshot()
    engine.close()

    assert [job.id for job in serve(journal.path).snapshot().jobs] == ["default/a"]
