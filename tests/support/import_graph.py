"""Draw the import graph of the package into docs/architecture.md: ``make graph``.

Every import counts: those inside functions and those under TYPE_CHECKING too. Only ``counterpoint/__init__.py`` and
``counterpoint/api.py``, which name the public API and nothing imports, are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import grimp

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
BEGIN, END = "<!-- made by `make graph` -->\n", "<!-- end -->\n"
ROOT = "counterpoint"
# drawn apart from its package, and as one
ROOMS = {f"{ROOT}.plugins": "plugins"}
LEAVES = ("checks", "version", "vectors")  # not drawn: many import them, and they import nothing

Graph = dict[str, set[str]]


def modules() -> Graph:
    """Each module with those that it imports."""
    graph = grimp.build_graph(ROOT, cache_dir=None)
    public = {ROOT, f"{ROOT}.api"}
    return {name: graph.find_modules_directly_imported_by(name) - public for name in graph.modules - public}


def circles(graph: Graph) -> list[list[str]]:
    """The groups of nodes that reach each other (Tarjan 1972), each sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            group, stack[at:] = sorted(stack[at:]), []
            if len(group) > 1:
                groups.append(group)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return groups


def floors(graph: Graph) -> int:
    """The number of nodes of the longest chain of imports; a circle counts as one node."""
    name = {node: node for node in graph} | {node: group[0] for group in circles(graph) for node in group}
    merged: Graph = {}
    for node, others in graph.items():
        merged.setdefault(name[node], set()).update(name[other] for other in others)
    height: dict[str, int] = {}

    def visit(node: str) -> int:
        if node not in height:
            height[node] = 1 + max((visit(other) for other in merged[node] - {node}), default=0)
        return height[node]

    return max(map(visit, merged))


def numbers(graph: Graph) -> str:
    """Count modules, floors (the longest chain of imports), arrows and circles; name the circles."""
    arrows, groups = sum(map(len, graph.values())), circles(graph)
    text = f"{len(graph)} modules on {floors(graph)} floors, {arrows} arrows, {len(groups)} circles."
    return text + "".join(f"\nCircle: {', '.join(group)}." for group in groups)


def room(module: str) -> str:
    """What a reader sees as one: a package, or a module of the core."""
    for prefix, name in ROOMS.items():
        if f"{module}.".startswith(f"{prefix}."):
            return name
    parts = module.split(".")
    return parts[2] if parts[1] == "integrations" and len(parts) > 2 else parts[1]


def rooms(graph: Graph) -> Graph:
    """The graph of the rooms."""
    merged: Graph = {}
    for module, others in graph.items():
        merged.setdefault(room(module), set()).update(map(room, others))
    hidden = {*LEAVES, "integrations", "__main__"}
    return {name: others - {name} - hidden for name, others in merged.items() if name not in hidden}


def reduced(graph: Graph) -> Graph:
    """Remove the arrows that a longer path implies (the transitive reduction)."""

    def reach(nodes: Iterable[str]) -> set[str]:
        seen: set[str] = set()
        todo = list(nodes)
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += graph[node]
        return seen

    return {
        node: {other for other in others if not any(other in reach(graph[via]) for via in others - {other})}
        for node, others in graph.items()
    }


def mermaid(graph: Graph) -> str:
    """A picture of the rooms, those of the integrations and of the core in boxes."""
    arrows = reduced(rooms(graph))
    above = {room(module) for module in graph if module.startswith(f"{ROOT}.integrations")}
    lines = ["flowchart TD"]
    for box, names in (("integrations", above), ("core", arrows.keys() - above - {"plugins"})):
        nodes = [f'    {name}_["{name}"]' for name in sorted(names & arrows.keys())]  # "graph" is a word of mermaid's
        lines += [f"  subgraph {box}", *nodes, "  end"]
    lines += [f"  {name}_ --> {other}_" for name in sorted(arrows) for other in sorted(arrows[name])]
    return "\n".join(lines).replace("plugins_", "plugins")


def block() -> str:
    graph = modules()
    return f"{BEGIN}```mermaid\n{mermaid(graph)}\n```\n\n{numbers(graph)}\n{END}"


def main() -> int:
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    DOCUMENT.write_text(before + block() + rest.partition(END)[2], encoding="utf-8")
    print(numbers(modules()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
