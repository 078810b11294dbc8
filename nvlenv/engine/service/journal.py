"""What the engine was asked and what it answered, on disk before anyone hears of it.

The journal is an SQLite database and no file format of its own, because SQLite already is what it takes: every frame of
its write-ahead log carries a checksum, a torn tail is dropped on opening, a transaction holds an operation together
with the gang plans that it changed, and an exclusive lock keeps a second service from booking the same GPUs. With
`synchronous=FULL` a commit returns after fsync: 0.2 ms on a local SSD, a hundredth of the time that an answer may take.

The engine is deterministic, so its state is the last checkpoint plus the operations since then, replayed. Answers are
kept beside the operations to prove it: `SharedEngine` compares them at every start.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nvlenv.common.errors import InputError

FORMAT = "nvlenv-journal/1"
SCHEMA = (
    "CREATE TABLE origin (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE checkpoint (seq INTEGER NOT NULL, state TEXT NOT NULL)",
    "CREATE TABLE operations (seq INTEGER PRIMARY KEY, operation TEXT NOT NULL, answer TEXT NOT NULL)",
    "CREATE TABLE plans (gang TEXT PRIMARY KEY, plan TEXT NOT NULL)",
)


class Record(NamedTuple):
    """One operation that changed the engine, and its answer."""

    seq: int
    operation: dict[str, Any]
    answer: Any


class Journal:
    """An open journal. One thread at a time; `SharedEngine` sees to it.

    Raises
    ------
    InputError : a file that is damaged, foreign, not writable, or in use by another service.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
            with ExitStack() as on_error:
                on_error.callback(self._db.close)
                self._open()
                on_error.pop_all()
        except sqlite3.Error as error:
            expected = "a journal that this service can write, and that no other one uses"
            raise InputError(self.path, "", f"{error}", expected) from None

    def _open(self) -> None:
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        found: str | None = ", ".join(sorted(tables))
        if "origin" in tables:
            found = dict(self._db.execute("SELECT key, value FROM origin").fetchall()).get("format")
        if tables and found != FORMAT:
            raise InputError(self.path, "format", repr(found), repr(FORMAT))
        for setting in ("journal_mode=WAL", "synchronous=FULL"):
            self._db.execute(f"PRAGMA {setting}").fetchall()
        with self._transaction():  # takes the lock, which is kept until the journal is closed
            if not tables:
                for statement in SCHEMA:
                    self._db.execute(statement)
                self._db.execute("INSERT INTO origin VALUES ('format', ?)", (FORMAT,))

    def close(self) -> None:
        """Let go of the file and its lock."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._db:  # commits, or rolls back after an error
            self._db.execute("BEGIN IMMEDIATE")
            yield

    # Writing; each call is durable when it returns

    def begin(self, origin: Mapping[str, str], state: Any) -> None:
        """Start with a state; `origin` says where it came from."""
        with self._transaction():
            self._db.executemany("INSERT INTO origin VALUES (?, ?)", origin.items())
            self._db.execute("INSERT INTO checkpoint VALUES (0, ?)", (_text(state),))

    def append(self, operation: Mapping[str, Any] | None, answer: Any, plans: Mapping[str, Any] | None = None) -> None:
        """Add an operation, and set the plans of gangs (None: drop it); either may be absent."""
        with self._transaction():
            if operation is not None:
                self._db.execute(
                    "INSERT INTO operations VALUES ((SELECT max(coalesce((SELECT max(seq) FROM operations), 0),"
                    " (SELECT max(seq) FROM checkpoint)) + 1), ?, ?)",
                    (_text(operation), _text(answer)),
                )
            for gang, plan in (plans or {}).items():
                if plan is None:
                    self._db.execute("DELETE FROM plans WHERE gang = ?", (gang,))
                else:
                    self._db.execute("INSERT OR REPLACE INTO plans VALUES (?, ?)", (gang, _text(plan)))

    def checkpoint(self, state: Any) -> None:
        """Replace the operations so far by the state that they led to."""
        with self._transaction():
            self._db.execute(
                "UPDATE checkpoint SET state = ?, seq = max(seq, coalesce((SELECT max(seq) FROM operations), 0))",
                (_text(state),),
            )
            self._db.execute("DELETE FROM operations")

    # Reading

    def state(self) -> Any:
        """The last checkpoint; None in a new journal."""
        row = self._db.execute("SELECT state FROM checkpoint").fetchone()
        return None if row is None else json.loads(row[0])

    def operations(self) -> Iterator[Record]:
        """What was done since the checkpoint, in order."""
        rows = self._db.execute("SELECT seq, operation, answer FROM operations ORDER BY seq")
        return (Record(seq, json.loads(operation), json.loads(answer)) for seq, operation, answer in rows)

    def plans(self) -> dict[str, Any]:
        """The plans of gangs, by name."""
        return {gang: json.loads(plan) for gang, plan in self._db.execute("SELECT gang, plan FROM plans")}


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
