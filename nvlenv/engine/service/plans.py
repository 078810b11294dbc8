"""Gang plans for a scheduler that asks pod by pod: the gang is decided once, its pods take their places one by one.

A plan waits for pods that have not come. If they stay away too long it expires, and its GPUs are free again. Once every
place is taken it stays until its job finishes or is evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from nvlenv.common.errors import InputError
from nvlenv.engine.model.answers import Binding, Loss, NodeLoss, Placed

PLAN_SECONDS = 300.0  # that a plan waits for its pods, if nobody says otherwise


@dataclass(frozen=True)
class GangPlan:
    """Where the pods of one gang go."""

    job: str  # its id in the engine
    slots: tuple[str, ...]  # node of each pod, by rank
    shape: tuple[int, ...]  # what one pod takes
    victims: Mapping[str, tuple[str, ...]]  # node -> uids of the pods that have to leave it
    deadline: float  # s since 1970; of no meaning once all slots are taken
    pods: Mapping[str, int]  # uid -> slot

    def node_of(self, uid: str) -> str:
        """The node of a pod; empty if it has no place yet."""
        return self.slots[self.pods[uid]] if uid in self.pods else ""

    def take(self, uid: str, rank: int | None, shape: tuple[int, ...], deadline: float) -> GangPlan:
        """The plan with a slot for the pod: the one of its rank if that is free, else the first that is.

        Raises `InputError` for a pod unlike the others, or one too many.
        """
        if uid in self.pods:
            return self
        if shape != self.shape:
            raise InputError(f"gang {self.job}", "pod", f"one that takes {shape}", f"equal pods, of {self.shape}")
        free = sorted(set(range(len(self.slots))).difference(self.pods.values()))
        if not free:
            raise InputError(f"gang {self.job}", "pod", "one more", f"the {len(self.slots)} that have their nodes")
        slot = rank if rank in free else free[0]
        return replace(self, pods={**self.pods, uid: slot}, deadline=deadline)

    def moved(self, left: Iterable[str], bindings: Iterable[Binding]) -> GangPlan:
        """The plan after pods left some nodes for others; those who come there will be new pods."""
        leaving = set(left)
        to = iter([binding.node for binding in bindings for _ in range(binding.pods)])
        stay = {uid: slot for uid, slot in self.pods.items() if self.slots[slot] not in leaving}
        return replace(self, slots=tuple(next(to, n) if n in leaving else n for n in self.slots), pods=stay)


class GangPlans:
    """The plans of all gangs. It changes by `set` alone, when the change is in the journal."""

    def __init__(self, kept: Mapping[str, Any], seconds: float) -> None:
        self.seconds = seconds
        self._plans: dict[str, GangPlan] = {}
        self._gang_of: dict[str, str] = {}  # job id -> gang
        self.set(TypeAdapter(dict[str, GangPlan]).validate_python(kept))

    def get(self, gang: str) -> GangPlan | None:
        """The plan of a gang, if it has one."""
        return self._plans.get(gang)

    def set(self, changes: Mapping[str, GangPlan | None]) -> None:
        """Take over the plans of some gangs; None drops one."""
        for gang, plan in changes.items():
            old = self._plans.pop(gang, None)
            if old is not None:
                self._gang_of.pop(old.job, None)
            if plan is not None:
                self._plans[gang], self._gang_of[plan.job] = plan, gang

    def expired(self, now: float) -> list[str]:
        """Ids of the jobs whose pods did not all come in time."""
        late = (plan for plan in self._plans.values() if plan.deadline < now)
        return [plan.job for plan in late if len(plan.pods) < len(plan.slots)]

    def pods_on(self, job: str) -> list[tuple[str, str]]:
        """Node and uid of the job's pods that have their places."""
        plan = self._plans.get(self._gang_of.get(job, ""))
        return [] if plan is None else [(plan.slots[slot], uid) for uid, slot in plan.pods.items()]

    def holds(self, uid: str) -> bool:
        """Whether the pod has its place in a plan."""
        return any(uid in plan.pods for plan in self._plans.values())

    def ended(self, job: str) -> dict[str, GangPlan | None]:
        """What the end of a job changes."""
        return {self._gang_of[job]: None} if job in self._gang_of else {}

    def after(self, answer: Any) -> dict[str, GangPlan | None]:
        """What an answer changes for the gangs that it takes nodes from."""
        if not isinstance(answer, Placed | NodeLoss):
            return {}
        changes: dict[str, GangPlan | None] = {}
        for eviction in answer.evictions:
            if eviction.reason == Loss.MOVED:
                changes |= self._moved(eviction.job, eviction.nodes, eviction.moved_to)
            else:
                changes |= self.ended(eviction.job)
        for kept in answer.replaced if isinstance(answer, NodeLoss) else ():
            changes |= self._moved(kept.job, [kept.failed], kept.spares)
        return changes

    def _moved(self, job: str, left: Iterable[str], to: Iterable[Binding]) -> dict[str, GangPlan | None]:
        gang = self._gang_of.get(job)
        return {} if gang is None else {gang: self._plans[gang].moved(left, to)}
