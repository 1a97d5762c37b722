"""Tables in HTML, as notebooks show them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

# of diagnose.report; a name with [...] stands for all names of that kind
MEANING = {
    "loss": "the loss of this batch",
    "term[...]": "what a weighted term adds to it",
    "positive_mean": "similarity of an anchor and its positive",
    "negative_mean": "similarity of an anchor and its negatives",
    "negative_variance": "variance of the similarities of an anchor's negatives",
    "negatives": "negatives of an anchor",
    "effective_negatives": "how many of them share the gradient: all if equal, 1 if one dominates",
    "negatives_above_positive": "share of negatives that are more similar than the positive",
    "removed[...]": "negatives of an anchor that the rule excludes",
    "removed_similarity[...]": "their similarity",
    "without_negatives": "anchors that have no negative left",
    "engine[...]": "how a training step reduces these negatives",
    "without_direction": "rows of the views that are zero",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> str:
    """Return a table with these columns and rows, below a title; cells are plain text."""
    columns = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    above = f"<p>{escape(title)}</p>" if title else ""
    return f"{above}<table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"


class Numbers(dict[str, float]):
    """Named numbers: a dict that notebooks show as a table, with what each number means.

    It is pickled as an ``OrderedDict``, which ``torch.load`` reads with ``weights_only=True``.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedDict, (), None, None, iter(self.items())

    def _repr_html_(self) -> str:
        rows = [(name, f"{value:.4g}", meaning(name)) for name, value in self.items()]
        return table(("", "value", "meaning"), rows)


def meaning(name: str) -> str:
    """Return what a number of :func:`counterpoint.diagnose.report` means, or nothing."""
    return MEANING.get(name) or MEANING.get(f"{name.partition('[')[0]}[...]") or ""
