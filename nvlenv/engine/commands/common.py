"""What several commands have in common: where the cluster comes from, and tables."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nvlenv.engine.formats.load import load_snapshot
from nvlenv.engine.model.snapshot import ClusterSnapshot

if TYPE_CHECKING:
    from nvlenv.engine.core.engine import PlacementEngine

REFUSED = 3
LARGEST = 2**31 - 1
DEFAULT_POLICY = "best-fit+easy+open"


def add_cluster(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--cluster",
        nargs="+",
        required=True,
        metavar="FILE",
        help="its files, together: `kubectl get nodes,pods -A -o json` (and Kueue's objects), Slurm's topology and "
        "`sinfo` or `scontrol show node`, or own JSON; - is the standard input",
    )
    group.add_argument(
        "--levels",
        metavar="LABEL,LABEL,...",
        type=lambda text: tuple(text.split(",")),
        default=(),
        help="node labels, coarse to fine, the host's last; default: Kueue's Topology, else those that are well known",
    )
    group.add_argument("--nvlink-level", default="", metavar="LABEL", help="the one that is the NVLink domain")
    group.add_argument("--topology", default="", metavar="NAME", help="which of several Kueue or Slurm topologies")
    group.add_argument(
        "--skip-unlabelled", action="store_true", help="leave out nodes without a level label instead of refusing"
    )


def add_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        default=DEFAULT_POLICY,
        metavar="NAME|FILE",
        help="a heuristic by name or a policy file (.npz); default %(default)s",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the whole answer as JSON")


def read_cluster(arguments: argparse.Namespace) -> ClusterSnapshot:
    return load_snapshot(
        *arguments.cluster,
        levels=arguments.levels,
        nvlink_level=arguments.nvlink_level,
        topology=arguments.topology,
        skip_unlabelled=arguments.skip_unlabelled,
    )


def make_engine(arguments: argparse.Namespace, cluster: ClusterSnapshot, policy: str | None = None) -> PlacementEngine:
    load_compiler()
    from nvlenv.engine.core.engine import PlacementEngine

    return PlacementEngine(cluster, policy or arguments.policy)


def load_compiler() -> None:
    """Import numba without the BLAS that it looks for in scipy and no kernel uses: commands start that much sooner."""
    before = sys.modules.get("scipy")
    if before is None:
        sys.modules["scipy"] = None  # type: ignore[assignment]
        try:
            import numba.np.arraymath  # noqa: F401
        finally:
            del sys.modules["scipy"]


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=1))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as they need to be; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    right = [all(_is_number(row[i]) for row in cells) and bool(cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        return "  ".join(parts).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, cells)])


def positive(text: str) -> int:
    """An argument that is a whole number of at least 1."""
    return whole(text, 1)


def whole(text: str, least: int, most: int = LARGEST) -> int:
    """An argument that is a whole number from `least` to `most`."""
    bounds = f"at least {least}" if most == LARGEST else f"{least} to {most}"
    if not re.fullmatch("[0-9]{1,10}", text) or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number of {bounds}")
    return int(text)


def number(text: str, what: str, most: float, zero: bool = False) -> float:
    """An argument that is a number above 0 (with `zero`, or 0) up to `most`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= most or (value == 0 and not zero):
        above = "at least 0" if zero else "above 0"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {what}, {above} and at most {most:g}")
    return value


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdecimal()
