"""AccaSim replays an SWF file; run as `python rival_accasim.py TRACE NODES GPUS_PER_NODE`, prints CPU seconds and jobs.

Its dispatcher is first in, first out with best fit. It writes into the current folder, so that should be a temporary
one. AccaSim 1.1.3 (2019) imports from `collections` what has since moved to `collections.abc`.
"""

from __future__ import annotations

import collections
import collections.abc
import json
import sys
import time
from pathlib import Path

collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]

from accasim.base.allocator_class import BestFit  # noqa: E402
from accasim.base.scheduler_class import FirstInFirstOut  # noqa: E402
from accasim.base.simulator_class import Simulator  # noqa: E402

trace, nodes, gpus = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
system = {
    "system_name": "racks",
    "start_time": 0,
    "equivalence": {"processor": {"core": 1}},
    "groups": {"node": {"core": gpus, "mem": 1}},
    "resources": {"node": nodes},
}
Path("system.json").write_text(json.dumps(system))
quiet = dict.fromkeys(("scheduling_output", "statistics_output", "pprint_output", "show_statistics"), False)
simulator = Simulator(trace, "system.json", FirstInFirstOut(BestFit()), LOG_LEVEL="ERROR", **quiet)
begin = time.process_time()
simulator.start_simulation()
print(time.process_time() - begin, simulator.dispatched_jobs)
