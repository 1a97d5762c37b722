"""Data in the script's frames that a treatment could use: ids, texts, and rows of tokens."""

import re
from collections import UserDict
from collections.abc import Collection, Iterator
from itertools import islice
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor

from counterpoint.batch.same import numbered
from counterpoint.treatments import PATH, treatment

from ..call import Call, call_of, of_keys
from ..paths import at_path
from ..sites import is_installed, is_own, names_at
from .frames import function_name, parameters
from .recognise import at_scale
from .records import Finding
from .watch import Sink

CLASSES = re.compile(r"(y|label|target|class|category)(e?s|_?ids?)?")
IDS = re.compile("query|qid|doc|passage|pid|user|item|^batch$")
# of keys that are nobody's positives: a negative's, or of a third column, as in sentence-transformers
NEGATIVES = re.compile(r"(\b|_)(hard|neg)|\[([2-9]|\d\d+)\]\[", re.IGNORECASE)


def tell(sink: Sink, finding: Finding) -> None:
    """Complete a finding: the names where its gradient is replaced, and what these lead to that a treatment could use.

    That is, objects with a value per anchor or key, but for the labels, by path, that the treatment accepts as in the
    run; with several processes, this is not tried. Nothing of the script is called.
    """
    frame: Any = sink.frames[0][0]
    of_loss = _package(frame)  # sentence-transformers hands the tokens to its losses
    shape, sides = sink.x.shape, [x for p in finding["_products"] for x in (p.a, p.b) if not finding.get("scores")]
    lengths = {*shape, shape[0] // 2, shape[-1] // finding["processes"], *map(len, sides)} - {0, 1}
    if "Cached" in finding["function"]:  # anchors are a part of the batch, and keys several columns of it
        lengths |= {shape[-1] // k for k in range(2, 9) if shape[-1] % k == 0 and shape[-1] // k > shape[0]}
    embeddings = (x for x in sides if x.dim() == 2 and x.requires_grad)  # equal ones are of equal texts
    finding["repeats"] = any(len(numbered(x, False).unique()) < len(x) for x in embeddings)
    replace, product, local = finding.get("replace"), finding.get("product"), None
    call = _at_logits(sink, finding)
    if replace and replace["whole"] and not finding.get("site_has_labels"):
        frame, passed = next(each for each in sink.frames if function_name(each[0].f_code) == replace["function"])
        local = {k: v for k, v in frame.f_locals.items() if k in parameters(frame.f_code)} | passed
        lengths = {len(passed[replace["arguments"][0]]) // int(replace["as"].get("cat", 1))}
        options = {k: passed[x] if k in ("queue", "labels") else x for k, x in replace["as"].items()}
        call = call_of([passed[name] for name in replace["arguments"][:2]], options)
    elif product:
        frame = next(p for p in finding["_products"] if p.place.short == product.partition(",")[0]).frames[0]
    names = names_at(frame) if local is None else names_at(frame.f_back).new_child(local)

    def is_accepted(told: str, values: Any) -> bool:
        if call is None or finding["processes"] > 1:
            return call is not None
        kind, args = told.partition("=")[0], call.args
        values = of_keys(kind, values, args[1], args[0].shape[-1]) if call.method == "from_logits" else values
        try:
            loss_fn = treatment(f"host; {told}", at_scale(str(finding["form"]), finding["scale"]))
            with torch.no_grad():
                Call(args, {**call.options, kind: values}, call.method, first=call.first).loss(loss_fn)
                return True
        except (TypeError, ValueError, RuntimeError):
            return False

    finding["repeats"] = finding["repeats"] and is_accepted("duplicates", None)
    finding["names"], found, seen = [*names], finding["told"], {id(sink.labels)}
    while frame is not None:
        if not is_own(frame) and (not is_installed(frame.f_code.co_filename) or _package(frame) == of_loss):
            values = {k: v for k, v in (local or frame.f_locals).items() if not isinstance(v, ModuleType)}
            values = {k: v for k, v in values.items() if local or k in sink.at_call.get(frame, values)}
            inside = [(name + step, x) for name, value in values.items() for step, x in _inside(value)]
            for path, x in (*values.items(), *inside):  # of two names, the shorter
                about = _about(path, x, lengths) if id(x) not in seen else None
                if about and PATH.fullmatch(path) and at_path(path, names) is x:
                    seen.add(id(x))
                    if not NEGATIVES.search(path) and is_accepted(f"{about['kind']}={path}", x):
                        found[path] = about
        frame, local = frame.f_back, None


def _at_logits(sink: Sink, finding: Finding) -> Call | None:
    """Return the call of an objective with the logits, or the product, as they are replaced; None without positives."""
    line, positives = finding.get("product", "").partition(",")[0], finding.get("_positives")
    x = next((p.values() for p in finding["_products"] if p.place.short == line), sink.x.detach())
    if positives is None or x.dim() < 2:
        return None
    keys = -2 if finding.get("way") == "columns" else 1 if sink.labels is not None and x.dim() > 2 else sink.keys
    x = x.movedim(keys, -1)
    labels = positives.view(x.shape if positives.dtype == torch.bool else x.shape[:-1])
    if labels.shape == x.shape and bool((labels.sum(-1) == 1).all()):
        labels = labels.long().argmax(-1)
    return Call([x, labels], {"scale": finding["scale"], "empty": "zero"}, "from_logits")


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items or attributes of a value, with the steps that lead to them."""
    items = vars(value).get("data") if isinstance(value, UserDict) else value
    items = dict(enumerate(items[:100])) if isinstance(items, (list, tuple)) else items
    step = "[{!r}]" if isinstance(items, dict) else ".{}"
    if not isinstance(items, dict):
        items = _attributes(value)
        stored = _attributes(items.get("_store")).get("_mapping")  # of PyG's Data
        items |= stored if isinstance(stored, dict) else {}
    for key, x in islice(dict.items(items), 100):
        yield step.format(key), x
        if isinstance(value, (list, tuple)) and isinstance(x, (dict, UserDict)):
            yield from ((step.format(key) + more, inner) for more, inner in _inside(x))


def _attributes(value: Any) -> dict[str, Any]:
    return dict(vars(value)) if type(value).__dictoffset__ else {}


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _about(path: str, x: Any, lengths: Collection[int]) -> dict[str, Any] | None:
    if isinstance(x, Tensor) and (x.dim() == 0 or x.layout != torch.strided):
        return None
    if not isinstance(x, (Tensor, list, tuple)) or len(x) not in lengths:
        return None
    kind, distinct = "duplicates", 0
    if not isinstance(x, Tensor) and all(type(each) is int and abs(each) < 2**63 for each in x):
        x = torch.tensor(x)
    if isinstance(x, Tensor):
        says = x.dim() == 1 or (x.dim() == 2 and x.amax() > 1)  # no mask
        # positions are not ids: arange(n), or the offsets of static embeddings
        positions = x.dim() == 1 and (len(x.diff().unique()) < 2 or "offsets" in path)
        if "int" in str(x.dtype) and says and not positions:
            kind, distinct = "ids" if x.dim() == 1 else kind, len(x.unique(dim=0))
    elif all(isinstance(each, str) for each in x):
        distinct = len({*x})
    name = re.findall(r"\w+", path)[-1].lower()
    many = name[:5] == "label" and distinct > 0.9 * len(x)  # a column `label` of sentence-transformers may have ids
    few = kind == "ids" and 5 * distinct <= len(x) and not IDS.search(name)
    classes = (bool(CLASSES.fullmatch(name)) and not many) or few
    if distinct < 2:
        return None
    values = hash(str(x.flatten()[:1000].tolist() if isinstance(x, Tensor) else x))
    return {"kind": kind, "length": len(x), "distinct": distinct, "classes": classes, "_values": values}
