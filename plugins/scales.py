"""The factor of a script's similarities: set by the user, or measured at the first calls of each site.

Cross entropy is the same for every scale, so that comparing losses does not find a wrong one. It is measured by
autograd instead: how logits move with the product of embeddings that they come from.
"""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

import torch
from torch import Tensor

from counterpoint.hyper import LARGEST

from .finder.functions import relative
from .finder.measure import scale_of
from .finder.records import Finding
from .finder.watch import Watch
from .host import OWN_LOSS, Seam, SeamError, depends_on_cosines
from .sites import CHANGING, named

CALLS, AGAIN = 3, 100  # of each line to measure, and of so many then one
ROUNDED = 0.01  # a scale that the user rounds, 14.3 for one over 0.07, differs by less
WHAT = "what similarities are multiplied by, usually one over the temperature, 20 for 0.05"
NAME = "the name that it has there, as in --scale self.logit_scale.exp"


class Scales:
    """The scale at each call of the sites; the notes of the seam say what was measured.

    ``option`` is ``--scale``: a number, a name at the site, :data:`CHANGING`, or None to take what is measured.
    """

    otherwise: str = ""  # a name at the sites, for logits that no product of embeddings leads to

    def __init__(self, seam: Seam, option: str | None) -> None:
        self.seam, self.changes = seam, option == CHANGING
        self.option = option = None if self.changes else option
        self.number = None if option is None else as_number(option)
        self.measured: dict[str, list[Finding | None]] = {}
        self.calls: dict[str, int] = {}
        self.watch: Watch | None = None
        self.values: list[float] = []  # that the script has computed in this step, if weights are to be proved by them
        self.start()
        seam.at_end.append(self.stop)

    def start(self) -> None:
        self.watch = Watch(self._at_backward, products_only=True)
        self.watch.start()

    def stop(self) -> None:
        if self.watch is not None and self.watch.stop():
            self.watch = None
            self.values.clear()

    def _at_backward(self, watch: Watch, root: Tensor) -> None:
        self.values[:] = map(float, watch.scalars) if self.seam.options.get("weighted") else ()

    def at(self, frame: FrameType, where: str, logits: Tensor, biased: bool = False) -> float | Tensor | None:
        """Return the scale of ``logits``, which ``frame`` passes on at ``where``; None before it could be measured."""
        findings = self.measured.setdefault(where, []) if logits.requires_grad else self.measured.get(where, [])
        if logits.requires_grad and torch._C._current_graph_task_id() < 0:  # not again, for a checkpoint
            self.calls[where] = n = self.calls.get(where, 0) + 1
            if n % AGAIN == 10 and self.seam.spec != OWN_LOSS and len(findings) == CALLS and findings[0] and not biased:
                findings.pop()
        missing = logits.requires_grad and len(findings) < CALLS
        if measures := missing and self.watch is not None:
            assert self.watch is not None
            findings[:] = [*([] if self.changes else findings), None]
            with suppress(RuntimeError):  # the script must not fail where only the measurement does
                findings[-1] = scale_of(self.watch, logits, biased)
            if not findings[-1] and len(findings) == CALLS and findings[0]:  # multiplied before it was watched
                measures = bool(findings.pop())
        elif missing and torch.overrides._get_current_function_mode() is None:
            self.start()  # for the next call: the products of this one were not watched
        scale: float | Tensor | None = self.number
        if self.option is None:
            scale = self._inferred(findings, frame, where)
        elif scale is None:
            scale = named(self.option, frame, **{CHANGING: ()})
        if measures and scale is not None:
            self._check(findings, scale, logits, where)
        if self.measured and all(len(x) >= CALLS for x in self.measured.values()):
            self.stop()
        return scale

    def are_of_a_layer(self, logits: Tensor) -> bool:
        """Whether logits are seen to be products with parameters, so that they classify."""
        if self.watch is None:
            return False
        with torch._C.DisableTorchFunction():
            products = self.watch.walk(logits).products
            return bool(products) and all(map(self.watch.is_head, products))

    def bias(self, frame: FrameType, where: str) -> float | Tensor:
        """Return the bias of the logits that were passed on at ``where``, once their scale was measured."""
        option, findings = self.seam.options.get("bias"), self.measured.get(where, [])
        finding = findings[-1] if findings else None
        if finding is None or finding["doubts"] or (measured := finding.get("bias")) is None:
            why = "; ".join(finding["doubts"]) if finding else "no product of embeddings leads to the logits"
            what = "are not similarities, scaled and shifted, or --positives is wrong"
            raise SeamError(f"the binary logits at {where} {what}: {why}")
        first = (findings[0] or finding)["bias"] or 0.0
        name = finding["bias_variable"] if option is None else option
        number = measured if name is None else as_number(name, signed=True)
        value: float | Tensor = named(str(name), frame) if number is None else number
        fixed = not isinstance(value, Tensor)
        if fixed and (finding["bias_learned"] or abs(measured - first) > ROUNDED * max(1.0, abs(measured))):
            raise SeamError(f"the bias at {where} changes: give --bias and the name that it has there, self.logit_bias")
        differs = abs(number_of(value) - measured) > ROUNDED * max(1.0, abs(measured))
        if differs and self.watch and len(findings) <= CALLS:
            raise SeamError(f"--bias {option} is wrong: logits at {where} are shifted by {measured:.6g}")
        return value

    def offset(self, where: str) -> float | str | None:
        """Return the one number that was added to all logits at ``where``, or its name if it is learned."""
        findings = [x for x in self.measured.get(where, []) if x is not None]
        offsets = [float(x["offset"] or 0.0) for x in findings]
        if not any(offsets) or findings[-1]["bias_learned"]:
            return findings[-1]["bias_variable"] if any(offsets) else None
        if max(offsets) - min(offsets) > ROUNDED * abs(offsets[0]):
            raise SeamError(f"what is added to all logits at {where} changes from {min(offsets):g} to {max(offsets):g}")
        return offsets[-1]

    def _inferred(self, findings: Sequence[Finding | None], frame: FrameType, where: str) -> float | Tensor | None:
        """Return the measured scale: a number, or the tensor that holds it."""
        if self.seam.spec == OWN_LOSS:
            return 1.0  # of any scale
        if not findings and self.watch is not None:
            return None
        finding = findings[0] if findings else None
        if finding is None and findings and self.otherwise:
            return float(named(self.otherwise, frame) or 1.0)
        if finding is None:
            why = "no product of embeddings leads to the logits" if findings else "other sites were reached before"
            raise SeamError(f"the scale at {where} could not be measured: {why}. Give --scale, {WHAT}; or {NAME}")
        if finding["doubts"] or not finding["scale"] > 0:
            doubts = "; ".join(finding["doubts"]) or f"it is {finding['scale']:g}"
            raise SeamError(f"the scale at {where} is not clear: {doubts}. Give --scale, {WHAT}")
        if not finding["learned"]:
            return float(finding["scale"])
        if finding["scale_variable"] is None:
            learned = ", ".join(finding["learned"])
            raise SeamError(f"the scale at {where} is learned ({learned}), but in no variable: give --scale {NAME}")
        value = named(finding["scale_variable"], frame)
        return value if isinstance(value, Tensor) else float(value)

    def _check(self, findings: Sequence[Finding | None], scale: float | Tensor, logits: Tensor, where: str) -> None:
        """Refuse a scale that differs from the measured one, or that no cosine can have; note the test."""
        finding = findings[-1]
        cosines = self.seam.spec != OWN_LOSS and depends_on_cosines(self.seam.spec)
        value, text = number_of(scale), f"--scale {self.option or self.otherwise}"
        rounding = max(ROUNDED, float(finding["_tolerance"]) if finding else 0.0)
        if cosines and finding and finding["shifted"]:
            raise SeamError(
                f"the logits at {where} are not the similarities times a number: a number of each row is taken from "
                f"them, such as the largest, and {self.seam.spec} depends on it. Replace the function or the product "
                "of the embeddings, as `counterpoint inject auto` says; infonce and supcon do not depend on it"
            )
        kinds = [bool(each["uneven"] or each["scores"]) for each in (findings[0], finding) if each]
        if cosines and kinds == [False, True]:
            raise SeamError(f"logits at {where} were similarities times one number, and now are not: a margin?")
        measured = value if finding is None else float(finding["scale"])
        if finding is None or finding["doubts"] or not finding["normalized"]:
            largest = float(logits.detach().max())
            if cosines and largest > LARGEST * value and (finding is None or relative(value, measured) > rounding):
                raise SeamError(
                    f"{text} is too small for cosines at {where}: a logit of {largest:.3g} would be a similarity of "
                    f"{largest / value:.3g}. The scale is {WHAT}"
                )
            if finding is None:
                why = "no product of embeddings leads to the logits"
            else:
                kind = finding.get("distance")
                what = f"they are negative {kind}" if kind else "embeddings are not normalized"
                why = "; ".join(finding["doubts"]) or f"{what}, so similarities have any size"
                if cosines and not finding["normalized"]:
                    warnings.warn(f"{self.seam.spec} assumes cosines, but at {where} {what}", stacklevel=1)
            if self.seam.spec != OWN_LOSS or self.option is not None:
                self.seam.notes[where] = f"its scale, {value:.6g}, was not tested: {why}"
            return
        taken = self.option is not None or self.seam.spec != OWN_LOSS  # its own loss depends on no scale
        if taken and finding["learned"] and not isinstance(scale, Tensor):
            learned = finding["scale_variable"] or NAME
            raise SeamError(f"{text}: the scale at {where} is learned, so a number is soon wrong: --scale {learned}")
        first = float((findings[0] or finding)["scale"])
        fixed = (self.option is None or self.number is not None) and not finding["learned"]
        if taken and fixed and relative(measured, first) > rounding:
            change = f"from {first:g} to {measured:g}"
            raise SeamError(f"the scale at {where} changes {change}: --scale {CHANGING}, or {NAME}")
        if self.option is not None and relative(value, measured) > rounding:
            raise SeamError(
                f"{text} is wrong: cosines are multiplied by {measured:.6g} at {where}, not by {value:.6g}. Leave "
                "--scale out, and what is measured is taken"
            )
        origin = "learned" if finding["learned"] else "changing" if self.changes else "constant"
        calls = "each call" if self.changes else f"{len(findings)} calls"
        self.seam.notes[where] = f"cosines times {measured:.6g}, {origin}, measured in {calls}"


def as_number(option: str, signed: bool = False) -> float | None:
    """Return the number that ``--scale``, or the signed ``--bias``, is, or None if it is a name."""
    try:
        number = float(option)
    except ValueError:
        return None
    if not signed and not 0 < number < float("inf"):
        raise SeamError(f"--scale {option}: expected a positive number or a name")
    return number


def number_of(scale: float | Tensor) -> float:
    return float(scale.detach() if isinstance(scale, Tensor) else scale)
