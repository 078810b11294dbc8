"""Mutation check of Kueue's placement and preemption: change the code in one spot and see whether the tests notice.

    python tests/policies/kueue/mutate_kueue_tas.py [FILE ...]

Comparisons, `and`/`or`, `min`/`max`, `+`/`-`, integers and signs of sort keys are changed, one at a time, in the core
files (or in those named, such as `search.py`). Each mutant is tried in a process of its own: first on the files of
cases, then on the test files. Prints the survivors and the kill rate; the exit code is 0 from 90 % on.
"""

from __future__ import annotations

import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

import pytest

HERE = Path(__file__).parent
PACKAGE = "nvlenv.policies.kueue"
ROOT = HERE.parents[2]
SOURCE = ROOT / "nvlenv" / "policies" / "kueue"
CORE = ("counting.py", "preemption.py", "quota.py", "search.py", "snapshot.py", "topology.py")
FILES_OF_CASES = ("kueue_tas.json", "kueue_tas_recorded.json", "kueue_preemption.json")
CASES = tuple(HERE.parents[1] / "cases" / name for name in FILES_OF_CASES)
TESTS = (str(HERE / "test_kueue_preemption.py"), *(str(file) for file in sorted(HERE.glob("test_kueue_tas_*.py"))))
TARGET = 0.9
TIMEOUT_S = 120  # of one mutant; an endless loop counts as noticed

Change = Callable[[ast.AST], None]

SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE,),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE,),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.USub: (ast.UAdd,),
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "reversed": "list"}


@dataclass(frozen=True)
class Mutant:
    module: str
    line: int
    text: str  # before -> after
    code: CodeType


def changes(node: ast.AST) -> Iterator[Change]:
    """All single changes of one node."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for swap in SWAPS.get(type(operator), ()):
                yield lambda n, index=index, swap=swap: n.ops.__setitem__(index, swap())
    elif isinstance(node, ast.BoolOp | ast.BinOp | ast.UnaryOp | ast.AugAssign):
        for swap in SWAPS.get(type(node.op), ()):
            yield lambda n, swap=swap: setattr(n, "op", swap())
        if isinstance(node.op, ast.Not):
            yield lambda n: setattr(n, "operand", ast.UnaryOp(ast.Not(), n.operand))
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        for step in (1, -1):
            yield lambda n, step=step: setattr(n, "value", n.value + step)
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield lambda n: setattr(n, "id", NAMES[n.id])


def mutants(file: Path) -> Iterator[Mutant]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for index, node in enumerate(ast.walk(tree)):
        for change in changes(node):
            mutated = copy.deepcopy(tree)
            spot = next(n for i, n in enumerate(ast.walk(mutated)) if i == index)
            change(spot)
            ast.fix_missing_locations(mutated)
            text = f"{ast.unparse(node)}  ->  {ast.unparse(spot)}"
            line = getattr(node, "lineno", 0)
            yield Mutant(f"{PACKAGE}.{file.stem}", line, text, compile(mutated, str(file), "exec"))


class Injector(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the mutant in place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == self.mutant.module else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self.mutant.code, module.__dict__)


def survives(mutant: Mutant) -> bool:
    child = os.fork()
    if child == 0:
        signal.alarm(TIMEOUT_S)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        sys.meta_path.insert(0, Injector(mutant))
        try:
            noticed = not cases_pass() or pytest.main(["-x", "-q", "-p", "no:cacheprovider", *TESTS]) != 0
        except BaseException:
            noticed = True
        os._exit(1 if noticed else 0)
    _, status = os.waitpid(child, 0)
    return status == 0


def cases_pass() -> bool:
    from nvlenv.policies.kueue.cases import expected_of, read_cases, run_case

    return all(run_case(case) == expected_of(case) for path in CASES for case in read_cases(path))


def main(names: Sequence[str]) -> int:
    sys.path[0] = str(ROOT)  # the tests import their helpers from there
    import nvlenv.policies  # noqa: F401  before the forks, to save time

    assert PACKAGE not in sys.modules, "a mutant must be imported in place of the module, not after it"
    tried = killed = 0
    for name in names or CORE:
        for mutant in mutants(SOURCE / name):
            tried += 1
            if survives(mutant):
                print(f"survived: {name}:{mutant.line}: {mutant.text}", flush=True)
            else:
                killed += 1
    print(f"{killed} of {tried} mutants noticed ({killed / tried:.1%})")
    return 0 if killed >= TARGET * tried else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
