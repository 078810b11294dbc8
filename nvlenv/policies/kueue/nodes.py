"""Which nodes exist for a topology, and which of them a pod may run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nvlenv.policies.kueue.types import Expression, Node, NodeAffinity, Taint, Term, Toleration

_SCHEDULING_EFFECTS = ("NoSchedule", "NoExecute")  # PreferNoSchedule only advises


def participates(node: Node, levels: Sequence[str], flavor_labels: Mapping[str, str]) -> bool:
    """Whether the node is part of the topology at all: usable, of the flavor, and labelled on every level."""
    return (
        node.ready
        and not node.unschedulable
        and has_labels(node, flavor_labels)
        and all(level in node.labels for level in levels)
    )


def has_labels(node: Node, wanted: Mapping[str, str]) -> bool:
    return all(node.labels.get(key) == value for key, value in wanted.items())


def obstacle(
    node: Node, selector: Mapping[str, str], tolerations: Sequence[Toleration], affinity: NodeAffinity
) -> str | None:
    """Why a pod may not run on the node, in the words of a failure message; None if it may. The first reason counts."""
    taint = _untolerated(node.taints, tolerations)
    if taint is not None:
        return f'taint "{taint}"'
    if not has_labels(node, selector):
        return "nodeSelector"
    if affinity.required is not None and not any(_matches(term, node) for term in affinity.required):
        return "affinity"
    return None


def preference(node: Node, affinity: NodeAffinity) -> int:
    """Sum of the weights of all preferred terms that the node matches."""
    return sum(weight for weight, term in affinity.preferred if _matches(term, node))


def _untolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    for taint in taints:
        if taint.effect in _SCHEDULING_EFFECTS and not any(_tolerates(t, taint) for t in tolerations):
            return taint
    return None


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    return (
        toleration.effect in ("", taint.effect)
        and toleration.key in ("", taint.key)
        and (toleration.operator == "Exists" or toleration.value == taint.value)
    )


def _matches(term: Term, node: Node) -> bool:
    """A term without any expression matches no node."""
    fields = {"metadata.name": node.name}
    return bool(term.expressions or term.fields) and (
        all(_holds(expression, node.labels) for expression in term.expressions)
        and all(_holds(expression, fields) for expression in term.fields)
    )


_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "Gt": lambda found, bound: found > bound,
    "Lt": lambda found, bound: found < bound,
}


def _holds(expression: Expression, labels: Mapping[str, str]) -> bool:
    found = labels.get(expression.key)
    match expression.operator:
        case "In":
            return found in expression.values
        case "NotIn":
            return found not in expression.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            return _compares(expression, found)
    return False


def _compares(expression: Expression, found: str | None) -> bool:
    """Labels and bounds that are not integers compare with nothing."""
    try:
        return found is not None and _COMPARISONS[expression.operator](int(found), int(expression.values[0]))
    except (ValueError, IndexError):
        return False
