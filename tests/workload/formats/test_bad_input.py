"""Every way to hand in a broken trace ends in one line that says where, what was found and what was expected."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvlenv.common.errors import InputError
from nvlenv.workload.formats.registry import FORMATS, read_trace

HEADER = b"submit_s,gpus,duration_s,kind,user,status\n"
GOOD = HEADER + b"0,8,60,eval,1,COMPLETED\n" * 20_000
ACME = b"user,gpu_num,type,state,submit_time,start_time,end_time,gpu_time\n"
JOB = {"status": "Pass", "submitted_time": "2017-10-07 01:00:00", "user": "u", "attempts": []}
ATTEMPT = {"start_time": "2017-10-07", "end_time": "Monday", "detail": []}

BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "found an empty file, expected a job trace"),
    "only blank lines": (b"\n\n  \n", "found an empty file"),
    "empty gzip": (gzip.compress(b""), "found an empty file"),
    "binary": (bytes(range(256)) * 20, "found binary data, expected a text file"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + b"\0" * 100, "found binary data"),
    "a zip archive": (b"PK\x03\x04" + b"\x14" * 60, "found a zip archive, expected the table inside it"),
    "a tar archive": (gzip.compress(b"x" * 257 + b"ustar" + b"\0" * 300), "found a tar archive"),
    "truncated gzip": (gzip.compress(GOOD)[:-30], r"line \d+: found gzip data that ends early"),
    "damaged gzip": (gzip.compress(random.Random(0).randbytes(3000).hex().encode())[:500] + b"junk" * 90, "gzip data"),
    "not UTF-8": (HEADER + b"0,8,60,\xff\xfe,1,x\n", "found bytes that are not UTF-8"),
    "header only": (HEADER, "format common: found no job to replay in 0 rows (nothing in it)"),
    "only CPU jobs": (HEADER + b"0,0,60,eval,1,x\n" * 3, "no job to replay in 3 rows (no GPUs: 3)"),
    "unknown columns": (b"when,how_many\n1,2\n", "line 1: found 'when,how_many', expected one of the formats common"),
    "prose": (b"Dear reader,\nthis is no trace.\n", "expected one of the formats"),
    "a web page": (b"<!DOCTYPE html>\n<html></html>\n", "line 1: found '<!DOCTYPE html>'"),
    "text in a number": (HEADER + b"0,8,60,a,1,x\n0,ten,60,a,1,x\n", "line 3, column 'gpus': found 'ten'"),
    "a unit in a number": (HEADER + b"0,8,60s,a,1,x\n", "line 2, column 'duration_s': found '60s'"),
    "a short row": (HEADER + b"0,8,60,a,1,x\n0,8,6", "line 3: found 3 cells in '0,8,6', expected 6 as in the header"),
    "an open quote": (HEADER + b'0,8,60,"a,1,x\n' + b"0,8,60,a,1,x\n" * 3, "line 5: found 4 cells"),
    "a huge cell": (HEADER + b'0,8,60,"' + b"a" * 200_000 + b'",1,x\n', "field larger than field limit"),
    "a bad time": (ACME + b"u,8,Eval,OK,yesterday,2023-03-01,2023-03-02,0\n", "'submit_time': found 'yesterday'"),
    "a bad month": (ACME + b"u,8,Eval,OK,2023-13-01,2023-03-01,2023-03-02,0\n", "expected a time like 2023-05-17"),
    "SWF with 5 columns": (b"; Version: 2\n1 2 3 4 5\n", "line 2: found 5 columns, expected the 18 columns of SWF"),
    "SWF with text": (b"; x\n1 0 0 ten 8 1 1 8 1 1 1 1 1 1 1 1 1 1\n", "line 2, column 'run time': found 'ten'"),
    "JSON cut short": (json.dumps([JOB, JOB])[:-30].encode(), "job 2: found broken JSON"),
    "JSON without its end": (b'[{"status": 1, "attempts": []}', "job 2: found the end of the file, expected"),
    "JSON nested deeply": (b"[" * 200_000, "job 1: found absurd JSON"),
    "JSON of a long number": (b"[" + b"9" * 5000 + b"]", "job 1: found absurd JSON"),
    "JSON object": (json.dumps(JOB).encode(), "expected '[' of a JSON list of jobs"),
    "JSON of numbers": (b"[1, 2]", "job 1: found 1, expected an object"),
    "JSON with two commas": (b'[{"attempts": []},, {}]', "job 2: found broken JSON"),
    "empty JSON list": (b"[]", "no job to replay"),
    "JSON job without attempts": (b'[{"status": "Pass"}]', "job 1: found no 'attempts' in ['status']"),
    "JSON attempts of numbers": (b'[{"status": "Pass", "attempts": [3]}]', "job 1: found [3], expected a list"),
    "JSON with a bad time": (json.dumps([JOB | {"attempts": [ATTEMPT]}]).encode(), "job 1: found the time 'Monday'"),
    "LLM requests": (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,4808,10\n", "a trace of LLM requests"),
    "pods without times": (b"name,cpu_milli,num_gpu,gpu_milli\nopenb-pod-0000,1,1,1000\n", "a pod list without times"),
    "a node list": (b"sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0000,64000,262144,2,P100\n", "a list of nodes"),
    "quotas by day": (b"date,vcEwI,total\n2020-04-01,72,968\n", "a table of quotas by day"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_told_in_one_line(tmp_path: Path, case: str) -> None:
    content, expected = BROKEN[case]
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message and len(message) < 600

    assert expected in message or re.search(expected, message)


def test_a_missing_file_a_folder_and_a_wrong_format_name_are_told(tmp_path: Path, cases: Path) -> None:
    for path, name, expected in (
        (tmp_path / "nowhere.csv", "auto", "no such file or directory"),
        (tmp_path, "auto", "is a directory"),
        (cases / "acme_kalos.csv", "kalos", "format: found 'kalos', expected auto or one of common, aaic, acme-kalos"),
        (cases / "acme_kalos.csv", "openb", "also num_gpu, gpu_milli"),
        (cases / "swf/swf_nasa.swf", "acme-seren", "line 1: found columns"),
        (cases / "azure_llm.csv", "auto", "LLM requests"),
    ):
        with pytest.raises(InputError) as caught:
            read_trace(path, name)
        assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.name)
@given(text=st.text(st.sampled_from('0123456789,.;:-"[]{}\n \tabz'), max_size=300))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_reader_fails_otherwise_whatever_the_text(tmp_path: Path, known: object, text: str) -> None:
    name, columns = known.name, known.columns  # type: ignore[attr-defined]
    path = tmp_path / f"{name}.csv"
    path.write_text(",".join(columns) + "\n" + text if columns else text)
    try:
        read_trace(path, name)
    except InputError as refusal:
        assert str(refusal).startswith(str(tmp_path)) and "\n" not in str(refusal)
