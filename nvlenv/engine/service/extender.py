"""kube-scheduler's extender protocol v1: filter, prioritize and preempt, asked pod by pod.

The first pod of a gang decides for all of it; each further one is shown its own node alone. A pod that may go nowhere
is answered node by node, with status 200 and no `Error`: on an error kube-scheduler passes over an ignorable extender
and puts the pod anywhere. Nodes that the plan does not mean are "unresolvable", so that nobody is preempted there.

The protocol is that of k8s.io/kube-scheduler/extender/v1; keys are read in any case and written as Go writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvlenv.common.errors import InputError
from nvlenv.engine.formats.document import Field
from nvlenv.engine.formats.gangs import gang_job, read_member
from nvlenv.engine.model.answers import Refused
from nvlenv.engine.service.plans import GangPlan
from nvlenv.engine.service.shared import SharedEngine

MAX_SCORE = 10


def filter_nodes(engine: SharedEngine, args: Field) -> dict[str, Any]:
    """ExtenderArgs -> ExtenderFilterResult: of the nodes asked about, the one that the plan has for this pod."""
    pod, nodes, names = _key(args, "Pod"), _key(args, "Nodes"), _node_names(args)
    node, why = _planned_node(engine, pod)
    if node and node not in names:
        why = f"the gang's plan has node {node} for this pod, and it is not among those that fit it"
    chosen = [name for name in names if name == node]
    return {
        "Nodes": {"items": [x.value for x in _key(nodes, "items") if _name(x) == node]} if nodes.present else None,
        "NodeNames": None if nodes.present else chosen,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {name: why for name in names if name != node},
        "Error": "",
    }


def prioritize(engine: SharedEngine, args: Field) -> list[dict[str, Any]]:
    """ExtenderArgs -> HostPriorityList: the highest score for the pod's own node, 0 for all others."""
    _, own = _plan_of(engine, _key(args, "Pod"))
    return [{"Host": name, "Score": MAX_SCORE if name == own else 0} for name in _node_names(args)]


def preempt(engine: SharedEngine, args: Field) -> dict[str, Any]:
    """ExtenderPreemptionArgs -> ExtenderPreemptionResult.

    kube-scheduler says for each node whom it would evict there. Allowed is the pod's own node alone, and of the pods
    that the engine knows only those that the gang's plan evicts; the others hold no place that it has given, as the
    verification pods do not that come and go on idle nodes.
    """
    plan, own = _plan_of(engine, _key(args, "Pod"))
    allowed = {}
    both = ("NodeNameToVictims", "NodeNameToMetaVictims")
    for node, victims in (entry for key in both for entry in _key(args, key).entries()):
        uids = [_uid(pod) for pod in _key(victims, "Pods")]
        if node == own and plan and all(uid in plan.victims.get(node, ()) or not engine.knows(uid) for uid in uids):
            violations = _key(victims, "NumPDBViolations").integer(0, at_least=0)
            allowed[node] = {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}
    return {"NodeNameToMetaVictims": allowed}


VERBS: dict[str, Callable[[SharedEngine, Field], Any]] = {
    "filter": filter_nodes,
    "prioritize": prioritize,
    "preempt": preempt,
}


def _planned_node(engine: SharedEngine, pod: Field) -> tuple[str, str]:
    """The pod's node, and why it may not go to others; no node, and why not."""
    try:
        member = read_member(pod)
        if not member.uid:
            raise pod["metadata"]["uid"].error("a uid")
        rank = member.rank[0] if len(member.rank) == 1 else None
        plan = engine.plan(member.gang, member.uid, rank, gang_job([pod.value], member))
    except InputError as error:
        return "", str(error)
    if isinstance(plan, Refused):
        return "", plan.reason
    node = plan.node_of(member.uid)
    return node, f"the gang's plan has node {node} for this pod"


def _plan_of(engine: SharedEngine, pod: Field) -> tuple[GangPlan | None, str]:
    """The plan of the pod's gang if there is one, and the pod's own node; empty if it has none yet."""
    try:
        member = read_member(pod)
    except InputError:
        return None, ""
    plan = engine.planned(member.gang)
    return plan, plan.node_of(member.uid) if plan else ""


def _key(field: Field, name: str) -> Field:
    """The entry of this name, in whatever case it is written: `field[name]` first."""
    if field[name].present:
        return field[name]
    same = (key for key in field.value or () if isinstance(key, str) and key.lower() == name.lower())
    return field[next(same, name)]


def _node_names(args: Field) -> list[str]:
    nodes, names = _key(args, "Nodes"), _key(args, "NodeNames")
    if nodes.present:
        return [_name(item) for item in _key(nodes, "items")]
    if not names.present:
        raise names.error("NodeNames, or Nodes")
    listed = names.value
    if isinstance(listed, list) and all(isinstance(name, str) and name and name.isprintable() for name in listed):
        return listed  # thousands of them, with every pod
    return [name.text() for name in names]


def _name(node: Field) -> str:
    return node["metadata"]["name"].text()


def _uid(pod: Field) -> str:
    """Of a pod, or of the meta pod that stands for one."""
    uid = _key(pod, "UID")
    return (uid if uid.present else pod["metadata"]["uid"]).text()
