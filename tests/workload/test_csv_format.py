"""Writing the common CSV: what comes back, and what an interrupted write leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvlenv.cluster.types import ClusterSpec
from nvlenv.common.errors import InputError
from nvlenv.workload.formats.common import write_csv
from nvlenv.workload.formats.registry import read_trace
from nvlenv.workload.generate import generate
from nvlenv.workload.mix import SyntheticWorkload
from nvlenv.workload.trace import Format, Trace, TraceJob, collect

NAMES = (
    st.text("abnx019 ,;\"'#é漢-_/.", min_size=1, max_size=8).map(str.strip).filter(lambda name: name not in ("", "nan"))
)
JOBS = st.builds(
    TraceJob,
    submit_s=st.floats(-1e9, 1e9),
    gpus=st.floats(1e-3, 1e6),
    duration_s=st.floats(1e-6, 1e9),
    kind=NAMES,
    user=NAMES,
    status=NAMES,
)


def same(one: Trace, other: Trace) -> bool:
    for name in ("submit_s", "gpus", "duration_s"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("kind", "user", "status"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, f"{name}_names") == getattr(other, f"{name}_names")
    return True


@given(jobs=st.lists(JOBS, min_size=1, max_size=8), suffix=st.sampled_from([".csv", ".csv.gz"]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_trace_comes_back_digit_by_digit(tmp_path: Path, jobs: list[TraceJob], suffix: str) -> None:
    path = tmp_path / f"trace{suffix}"
    trace = collect(Path("trace"), Format("test", "a list", lambda _: iter(jobs)))
    write_csv(trace, path)
    first = read_trace(path)
    write_csv(first, path)  # the names are numbered in the order of the file from now on
    assert same(first, read_trace(path))
    np.testing.assert_array_equal(first.submit_s, trace.submit_s)
    np.testing.assert_array_equal(first.gpus, trace.gpus)
    users = [first.user_names[code] for code in first.user]
    assert users == [trace.user_names[code] for code in trace.user]


def test_names_with_line_breaks_stay_on_their_line(tmp_path: Path) -> None:
    job = TraceJob(0, 1, 2, user="a,\r\nb\rc")
    write_csv(collect(Path("trace"), Format("test", "one job", lambda _: iter([job]))), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text().splitlines()[1:] == ['0,1,2,unknown,"a, b c",unknown']


def test_the_same_jobs_give_the_same_bytes(lab16: ClusterSpec, tmp_path: Path) -> None:
    jobs = generate(SyntheticWorkload(jobs=50), lab16, np.random.default_rng(0))
    for name in ("a.csv.gz", "b.csv.gz"):
        write_csv(jobs, tmp_path / name)
    data = (tmp_path / "a.csv.gz").read_bytes()
    assert data == (tmp_path / "b.csv.gz").read_bytes()
    assert data[4:8] == bytes(4)  # gzip's time stamp


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("precious")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="found no space left on device, expected a place to write"):
        write_csv(read_trace(cases / "acme_kalos.csv"), path)
    assert path.read_text() == "precious" and list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, cases: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "out.csv", tmp_path):
        with pytest.raises(InputError, match=r"expected a (folder|place to write the file)"):
            write_csv(read_trace(cases / "acme_kalos.csv"), place)


def test_whole_numbers_are_written_without_a_point(tmp_path: Path, cases: Path) -> None:
    write_csv(read_trace(cases / "acme_kalos.csv"), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines() == [
        "submit_s,gpus,duration_s,kind,user,status",
        "0,64,8,unknown,uf794,FAILED",
        "1664,64,70,unknown,uf794,CANCELLED",
    ]
