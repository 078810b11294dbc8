"""Each public format, on the true thing where it may be copied, else on rows by hand; one test per known pitfall."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvlenv.common.errors import InputError
from nvlenv.workload.formats.registry import FORMATS, format_names, read_trace
from nvlenv.workload.trace import Trace

Write = Callable[..., Path]

HANDWRITTEN = {
    "philly-chronus": (
        "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,"
        "expect_value_list,best_effort,job_type\n7,vc_1,4,120,6910,vgg16,211,8,282,10,0,strict\n"
    ),
    "pai-sim": "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user\n0,20,5,600,0.5,T4,0,u\n",
    "dlrm": (
        "instance_sn,role,app_name,cpu_request,gpu_request,creation_time,scheduled_time,deletion_time\n"
        "i0,HN,app,12,1,,,\ni1,HN,app,12,1,100.0,160.0,1160.0\ni2,CN,app,64,0,5.0,5.0,9.0\ni3,HN,app,12,1,7,7,NaN\n"
    ),
    "spot": (
        "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type\n"
        "1,57,A100,15.0,1.0,94,9589663.0,71718.0,Spot\n2,13,A10,8.0,2.0,1,0.0,600.0,HP\n"
    ),
    "asi": (
        "pod_id,workload_id,priority_class,job_type_public,gpu_request,duration_hours,ready_status\n"
        "p0,w,HP,online_inference,0.5,2.5,true\np1,,LP,training,8,1,true\n"
    ),
    "supercloud": (
        "id_job,id_user,state,timelimit,time_submit,time_eligible,time_start,time_end,tres_alloc,tres_req\n"
        '1,77,3,4294967295,1600000000,0,1600000100,1600000400,"1=20,2=170000,4=2,5=20,1002=4","1=20,1002=2"\n'
        '2,77,4,60,1600000005,0,0,1600000400,"","1=20,1002=2"\n'
        '3,77,3,60,1600000006,0,1600000400,1600000500,"1=20,2=100",""\n'
        '4,78,6,60,1600000007,0,1600000400,1600000500,"1001=1,1002=1",""\n'
    ),
    "aaic": (
        "1,10,3,0,2,8,3600,0,1500000000,1500000060,1500003000,60,2940\n"
        "2,10,3,0,1,3,60,3,1500000100,1500000100,1500000150,0,50\n"
    ),
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def rows(trace: Trace) -> list[tuple[float, float, float, str, str, str]]:
    labels = (
        [names[code] for code in codes]
        for codes, names in zip(
            (trace.kind, trace.user, trace.status),
            (trace.kind_names, trace.user_names, trace.status_names),
            strict=True,
        )
    )
    return list(zip(*(c.tolist() for c in (trace.submit_s, trace.gpus, trace.duration_s)), *labels, strict=True))


EXCERPTS = {
    "acme_kalos.csv": "acme-kalos",
    "acme_seren.csv": "acme-seren",
    "helios_cluster_log.csv": "helios",
    "philly/philly_cluster_job_log.json": "philly",
    "philly/philly_rfold.csv": "philly-rfold",
    "philly/philly_sia.csv": "philly-sia",
    "philly/philly_2017oct_3000.csv.gz": "common",
    "openb_pod_list.csv": "openb",
    **{f"pai_{table}_table.csv": "pai" for table in ("job", "task")},
    **{f"swf/swf_{log}.swf": "swf" for log in ("nasa", "hpc2n", "lublin")},
}


@pytest.mark.parametrize(("name", "expected"), EXCERPTS.items())
def test_every_excerpt_is_recognised_and_has_jobs(cases: Path, name: str, expected: str) -> None:
    trace = read_trace(cases / name)
    assert trace.report.format == expected
    assert len(trace) == trace.report.kept >= 1
    assert trace.report.rows == trace.report.kept + sum(trace.report.dropped.values())
    assert trace.submit_s[0] == 0 and (np.diff(trace.submit_s) >= 0).all()
    assert (trace.gpus > 0).all() and (trace.duration_s > 0).all()
    named = read_trace(cases / name, expected)
    assert rows(named) == rows(trace)


@pytest.mark.parametrize("name", HANDWRITTEN)
def test_handwritten_rows_are_recognised(write: Write, name: str) -> None:
    assert read_trace(write(HANDWRITTEN[name])).report.format == name


def test_every_format_is_tested_here() -> None:
    assert set(EXCERPTS.values()) | set(HANDWRITTEN) | {"lingjun"} == set(format_names())


# --------------------------------------------------------------------------------------------------------------------
# Acme and Helios
# --------------------------------------------------------------------------------------------------------------------


def test_kalos_run_times_leave_out_the_queue(cases: Path) -> None:
    trace = read_trace(cases / "acme_kalos.csv")
    assert rows(trace) == [(0, 64, 8, "unknown", "uf794", "FAILED"), (1664, 64, 70, "unknown", "uf794", "CANCELLED")]


def test_the_offset_of_a_time_counts(write: Write) -> None:
    header = "user,gpu_num,type,state,submit_time,start_time,end_time,gpu_time\n"
    first = "a,8,SFT,TIMEOUT,2023-03-01 00:00:00+08:00,2023-03-01 00:00:10+08:00,2023-02-28 17:00:00+00:00,0\n"
    second = "b,8,MLLM,NODE_FAIL,2023-02-28 16:00:30+00:00,2023-02-28 16:00:30+00:00,2023-03-01 00:01:00+08:00,0\n"
    assert rows(read_trace(write(header + first + second))) == [
        (0, 8, 3590, "finetune", "a", "FAILED"),
        (30, 8, 30, "pretrain", "b", "FAILED"),
    ]


def test_acme_rows_that_are_no_finished_gpu_jobs_are_counted(write: Write) -> None:
    header = "user,gpu_num,type,state,submit_time,start_time,end_time,gpu_time\n"
    at = "2023-03-01 00:00:00+08:00"
    text = [
        f"a,8,Eval,COMPLETED,{at},{at},2023-03-01 00:00:09+08:00,0",
        f"a,0,Other,COMPLETED,{at},{at},{at},0",
        f"a,8,Eval,RUNNING,{at},{at},,0",
        f"a,8,Eval,CANCELLED,{at},,{at},0",
        f"a,8,Eval,COMPLETED,{at},{at},{at},0",
    ]
    assert read_trace(write(header + "\n".join(text))).report.dropped == {
        "no GPUs": 1,
        "still running": 1,
        "no run time": 1,
        "zero or negative run time": 1,
    }


def test_helios_leaves_out_the_warm_up_and_what_still_runs(cases: Path, write: Write) -> None:
    text = (cases / "helios_cluster_log.csv").read_text()
    text += "1,u,vc,8,1,1,COMPLETED,2020-03-18 00:00:00,2020-03-18 00:00:00,2020-04-18 00:00:00,0,0\n"
    text += "2,u,vc,8,1,1,SUSPENDED,2020-05-18 00:00:00,2020-05-18 00:00:00,2020-05-19 00:00:00,0,0\n"
    trace = read_trace(write(text))
    assert trace.report.dropped == {"warm-up before 1 April 2020": 1, "still running": 1}
    assert trace.duration_s.tolist() == [36848, 249, 675233]


# --------------------------------------------------------------------------------------------------------------------
# Philly
# --------------------------------------------------------------------------------------------------------------------


def _attempt(start: Any, end: Any, *servers: int) -> dict[str, Any]:
    detail = [{"ip": f"m{i}", "gpus": [f"gpu{gpu}" for gpu in range(gpus)]} for i, gpus in enumerate(servers)]
    return {"start_time": start, "end_time": end, "detail": detail}


def _log(*jobs: list[dict[str, Any]], status: str = "Killed") -> str:
    return json.dumps(
        [
            {
                "status": status,
                "vc": "v",
                "jobid": "j",
                "attempts": attempts,
                "submitted_time": "2017-10-07 01:00:00",
                "user": "u",
            }
            for attempts in jobs
        ]
    )


def test_philly_sums_the_attempts_without_the_waits_between(cases: Path) -> None:
    trace = read_trace(cases / "philly/philly_cluster_job_log.json")
    first, second = 74, 2 * 86400 + 5 * 3600 + 39 * 60 + 42
    assert rows(trace) == [(0, 8, first + second, "unknown", "ce2f4c", "COMPLETED")]


def test_philly_attempts_of_different_size_keep_their_gpu_time(write: Write) -> None:
    retried = [
        _attempt("2017-10-07 02:00:00", "2017-10-07 02:01:00", 8, 8),
        _attempt("2017-10-07 03:00:00", "2017-10-07 03:02:00", 4),
    ]
    assert rows(read_trace(write(_log(retried))))[0][1:3] == (16, 90)


def test_philly_knows_null_and_none(write: Write) -> None:
    at, later = "2017-10-07 02:00:00", "2017-10-07 03:00:00"
    text = _log(
        [_attempt(None, at, 1), _attempt(at, later, 1)],  # a lost start
        [],
        [_attempt(at, later, 1), _attempt(later, None, 1)],
        [_attempt(at, "None", 1)],
        [_attempt(at, later)],
    )
    trace = read_trace(write(text))
    assert trace.duration_s.tolist() == [3600]
    assert trace.report.dropped == {"still running": 2, "never started": 1, "no GPUs": 1}


def test_philly_runs_through_the_end_of_summer_time_keep_their_length(write: Write) -> None:
    text = _log([_attempt("2017-11-05 00:30:00", "2017-11-05 03:30:00", 1)])
    assert read_trace(write(text)).duration_s.tolist() == [4 * 3600]


def test_philly_jobs_are_read_across_the_chunks_of_a_large_file(write: Write) -> None:
    one = [_attempt("2017-10-07 02:00:00", "2017-10-07 03:00:00", 8) for _ in range(20)]
    text = _log(*[one] * 200)
    assert len(text) > 4 * (1 << 16)
    assert len(read_trace(write(text))) == len(read_trace(write(text.replace(",", " ,\n\t ")))) == 200


def test_flattened_philly_is_sorted_by_submit(cases: Path) -> None:
    trace = read_trace(cases / "philly/philly_sia.csv")
    assert (np.diff(trace.submit_s) >= 0).all() and trace.user_names[trace.user[0]] == "6c71a0"
    assert "retries" in read_trace(cases / "philly/philly_rfold.csv").report.note


# --------------------------------------------------------------------------------------------------------------------
# Alibaba
# --------------------------------------------------------------------------------------------------------------------


def test_pai_gpus_are_percent_per_instance_summed_over_tasks(write: Write) -> None:
    write("j,inst,ann,Terminated,100.0,999.0\nk,inst,bob,Failed,50.0,99.0\n", "pai_job_table.csv")
    tasks = write(
        "j,ps,1.0,Terminated,110.0,900.0,600,29,,MISC\n"
        "j,worker,4.0,Terminated,120.0,720.0,600,29,50.0,T4\n"
        "j,chief,1.0,Failed,130.0,730.0,600,29,100.0,T4\n"
        "k,worker,1.0,Terminated,70.0,80.0,600,29,25.0,T4\n"
        "l,worker,1.0,Running,70.0,,600,29,25.0,T4\n"
        "m,worker,1.0,Waiting,,,600,29,25.0,T4\n",
        "pai_task_table.csv",
    )
    trace = read_trace(tasks)
    assert rows(trace) == [(0, 0.25, 10, "unknown", "bob", "COMPLETED"), (50, 3, 610, "unknown", "ann", "FAILED")]
    assert trace.report.dropped == {"no end time": 1, "never started": 1}
    assert rows(read_trace(tasks.with_name("pai_job_table.csv"))) == rows(trace)


def test_pai_tasks_alone_are_submitted_when_they_start(cases: Path, write: Write) -> None:
    tasks = write((cases / "pai_task_table.csv").read_text(), "pai_task_table.csv")
    assert rows(read_trace(tasks)) == [(0, 0.5, 38, "unknown", "-1", "COMPLETED")]


def test_pai_jobs_alone_have_no_gpus(cases: Path, write: Write) -> None:
    jobs = write((cases / "pai_job_table.csv").read_text(), "pai_job_table.csv")
    with pytest.raises(InputError, match="no pai_task_table beside it"):
        read_trace(jobs)


def test_pai_tables_may_have_their_header(write: Write) -> None:
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    assert len(read_trace(write(header + "j,w,1.0,Terminated,120.0,720.0,600,29,50.0,T4\n"))) == 1


def test_pai_simulator_rows_count_gpus_per_instance_and_clamp_zero(write: Write) -> None:
    assert rows(read_trace(write(HANDWRITTEN["pai-sim"]))) == [(0, 10, 1, "unknown", "u", "unknown")]


def test_openb_drops_pods_that_were_never_scheduled(cases: Path) -> None:
    trace = read_trace(cases / "openb_pod_list.csv")
    assert trace.report.dropped == {"no GPUs": 20, "never started": 18} and len(trace) == 97
    assert 0.46 in trace.gpus and set(trace.kind_names) == {"inference", "unknown"}


def test_dlrm_instances_without_times_live_from_start_to_end(write: Write) -> None:
    trace = read_trace(write(HANDWRITTEN["dlrm"]))
    assert rows(trace) == [
        (0, 1, 2_676_149, "inference", "app", "Running"),
        (7, 1, 2_676_142, "inference", "app", "Running"),
        (100, 1, 1000, "inference", "app", "Succeeded"),
    ]


def test_spot_jobs_have_all_their_workers(write: Write) -> None:
    assert rows(read_trace(write(HANDWRITTEN["spot"]))) == [
        (0, 2, 600, "hp", "13", "unknown"),
        (9589663, 94, 71718, "spot", "57", "unknown"),
    ]


def test_asi_hours_become_seconds_and_the_missing_submits_are_said(write: Write) -> None:
    trace = read_trace(write(HANDWRITTEN["asi"]))
    assert rows(trace) == [(0, 0.5, 9000, "inference", "w", "unknown"), (60, 8, 3600, "training", "-1", "unknown")]
    assert "no submit times" in trace.report.note
    header, *lines = HANDWRITTEN["asi"].splitlines()
    dated = "\n".join([header + ",day,hour", lines[0] + ",1,02", lines[1] + ",0,23"])
    assert read_trace(write(dated)).submit_s.tolist() == [0, 3 * 3600]


def test_lingjun_joins_jobs_and_workers(write: Write) -> None:
    header = (
        "id,uid,job_name,status,user_id,gmt_job_submitted,gmt_job_running,gmt_job_stopped,gmt_job_finished,Unnamed: 9\n"
    )
    jobs = write(
        header
        + "1,a,ja,Succeeded,7,2023/7/15 02:19,2023/7/15 02:20,,2023/7/15 12:23,\n"
        + "2,b,jb,Failed,8,2023/7/15 02:19,2023/7/15 02:20,2023/7/15 02:20,,\n"
        + "3,c,jc,Failed,8,2023/7/17 02:53,2023/7/5 15:18,2023/7/17 09:00,,\n"
        + "4,d,jd,Created,8,2023/7/15 02:19,,,,\n"
        + "5,e,je,Running,8,2023/7/15 02:19,2023/7/15 02:20,,,\n"
        + "6,f,jf,Stopped,8,2023/7/15 02:10,2023/7/15 02:20,2023/7/15 02:25,,\n"
        + "7,g,jg,Stopped,8,2023/7/15 02:10,2023/7/15 02:20,2023/7/15 02:25,,\n",
        "job.csv",
    )
    res = '"{""cpu"":""64"",""nvidia.com/gpu"":""8""}"'
    workers = write(
        f"id,job_name,worker_name,host_ip,RES\n1,ja,w0,h,{res}\n2,ja,w1,h,{res}\n3,jb,w0,h,{res}\n"
        f'4,jc,w0,h,{res}\n5,jf,w0,h,"{{""cpu"":""4""}}"\n6,jg,w0,h,{res}\n',
        "worker.csv",
    )
    trace = read_trace(jobs)
    assert trace.report.format == "lingjun"
    assert rows(trace) == [(0, 8, 300, "unknown", "8", "Stopped"), (540, 16, 36180, "unknown", "7", "Succeeded")]
    assert trace.report.dropped == {
        "zero or negative run time": 1,
        "started before its submit": 1,
        "never started": 1,
        "still running": 1,
        "no GPUs": 1,
    }
    assert rows(read_trace(workers)) == rows(trace)


def test_lingjun_needs_both_tables(write: Write) -> None:
    columns = "job_name,status,gmt_job_submitted,gmt_job_running,gmt_job_stopped,gmt_job_finished\n"
    with pytest.raises(InputError, match=r"no worker.csv beside it"):
        read_trace(write(columns, "job.csv"))


# --------------------------------------------------------------------------------------------------------------------
# Accounting logs, SWF, the common CSV
# --------------------------------------------------------------------------------------------------------------------


def test_supercloud_counts_both_kinds_of_gpu(write: Write) -> None:
    trace = read_trace(write(HANDWRITTEN["supercloud"]))
    assert rows(trace) == [(0, 4, 300, "unknown", "77", "COMPLETED"), (7, 2, 100, "unknown", "78", "FAILED")]
    assert trace.report.dropped == {"never started": 1, "no GPUs": 1}


def test_aaic_multiplies_nodes_and_gpus(write: Write) -> None:
    assert rows(read_trace(write(HANDWRITTEN["aaic"]))) == [
        (0, 16, 2940, "unknown", "10", "COMPLETED"),
        (100, 3, 50, "unknown", "10", "CANCELLED"),
    ]


def test_swf_knows_comments_missing_values_and_parts_of_jobs(write: Write) -> None:
    lines = [
        "; Version: 2.2",
        "1 1356996147 0 56011 64 1 1024 64 86400 6871 1 62 1 1 -1 1 1 1 {1241,1241} q_1d 1:ppn=64",
        "2 1356996150 5 100 -1 1 -1 16 -1 -1 0 -1 1 1 -1 1 -1 -1",
        "3 1356996151 5 -1 8 1 -1 16 -1 -1 5 3 1 1 -1 1 -1 -1",
        "4 1356996152 5 30 8 1 -1 16 -1 -1 3 3 1 1 -1 1 -1 -1",
        "5 -1 5 30 8 1 -1 16 -1 -1 1 3 1 1 -1 1 -1 -1",
        "",
    ]
    trace = read_trace(write("\n".join(lines)))
    assert rows(trace) == [(0, 64, 56011, "unknown", "62", "COMPLETED"), (3, 16, 100, "unknown", "-1", "FAILED")]
    assert trace.report.dropped == {"zero or negative run time": 1, "part of a job": 1, "no submit time": 1}


def test_the_common_csv_needs_three_columns_in_any_order(write: Write) -> None:
    trace = read_trace(write("\ufeffduration_s,submit_s,gpus\n60,5,0.5\n\n30,1,8\nnan,1,8\n"))
    assert rows(trace) == [(0, 8, 30, "unknown", "-1", "unknown"), (4, 0.5, 60, "unknown", "-1", "unknown")]
    assert trace.report.dropped == {"no run time": 1}


def test_jobs_of_the_same_second_keep_the_order_of_the_file(write: Write) -> None:
    text = "submit_s,gpus,duration_s\n" + "".join(f"{i % 3},1,{i + 1}\n" for i in range(3000))
    expected = [i + 1 for second in range(3) for i in range(second, 3000, 3)]
    assert read_trace(write(text)).duration_s.tolist() == expected


def test_gzip_and_plain_read_the_same(cases: Path, tmp_path: Path) -> None:
    plain = cases / "acme_kalos.csv"
    packed = tmp_path / "kalos.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert rows(read_trace(packed)) == rows(read_trace(plain))


def test_windows_line_ends_and_quotes_are_fine(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'"submit_s","gpus","duration_s","user"\r\n"0","1","60","a,\r\nb"\r\n')
    assert rows(read_trace(path)) == [(0, 1, 60, "unknown", "a,\r\nb", "unknown")]


def test_a_format_that_has_the_columns_of_another_comes_before_it() -> None:
    for k, known in enumerate(FORMATS):
        assert not any(set(other.columns) < set(known.columns) for other in FORMATS[:k] if other.columns)
