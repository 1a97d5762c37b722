"""The calls of a script whose logits get another gradient: losses and sums of exponentials."""

import functools
import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from counterpoint.base import Objective
from counterpoint.batch.ready_made import columns_of
from counterpoint.names import nearest
from counterpoint.values import FromHost

from .call import of_keys
from .finder.recognise import UNDERFLOW, keys_of, targets_of
from .gradient import Logits
from .host import OWN_LOSS, Seam, SeamError, world_size
from .scales import Scales, number_of
from .sites import Site, caller, is_file, is_installed, is_own, named, names_at, place, short

HOW = (
    "--positives diagonal, half, neighbor, a column's number, the name of a tensor of columns or soft targets at the "
    "site, or gradient, by which they are told from negatives"
)
OWNERS: tuple[Any, ...] = (torch, Tensor, nn.functional)
_BINARY = "logsigmoid"
_COMPILED = "CompiledFunction"
# products of two tensors, or of a table that is looked up, which is data
_PRODUCTS = (
    *("Addmm", "Mm", "Bmm", "Baddbmm", "Linear", "Convolution", "Conv", "Embedding", "Index", "Gather", "SparseAddmm"),
    *("Cdist", "EuclideanDist", "MkldnnRnn", "CudnnRnn", _COMPILED),
)
_SUMS = ("logsumexp", "log_softmax", _BINARY, "softmax", "exp")
_IF_WRONG = (
    "What --positives or --own says is not so, or the host adds another term to these logits, or changes its loss in "
    "the course of the training: `counterpoint inject auto` says what it computes. --allow-drift trains on regardless."
)


class Calls:
    """The calls from the ``sites``, which come with their positives, for calls that have no labels."""

    def __init__(self, seam: Seam, sites: dict[Site, str | None]) -> None:
        self.seam, self.sites = seam, sites
        self.places: dict[tuple[str, int], tuple[Site | None, str]] = {}  # of each line of a call, its site and name
        self.classifies: dict[str, bool] = {}  # of each line that was left alone: whether its logits are of a layer
        self.scales = Scales(seam, None if seam.options.get("product") else seam.options.get("scale"))
        self.places_told = False
        self.unlabeled: dict[str, str] = {}  # calls at sites that need --positives
        self.kinds: dict[Site, bool | tuple[int, list[Logits]]] = {}  # see leaves_alone
        self.hooked = WeakIdKeyDictionary()  # logits whose whole gradient is replaced
        seam.if_wrong = _IF_WRONG

    def place(self, frame: FrameType) -> tuple[Site | None, str]:
        """Return the site that a call comes from, None for other lines and for this library's own, and its line."""
        key = frame.f_code.co_filename, frame.f_lineno
        if key not in self.places:
            here = [site for site in self.sites if not is_own(frame) and site.covers(*key)]
            self.places[key] = here[0] if here else None, place(frame)
        return self.places[key]

    def site(self, frame: FrameType, logits: Tensor) -> tuple[Site | None, str]:
        """Return the same, and count the call."""
        site, where = self.place(frame)
        if is_own(frame):
            return None, where
        shape = f"logits {tuple(logits.shape)}"
        if site is None:
            if not self.places_told:
                self.tell_of_places()
            if where not in self.classifies and logits.requires_grad:
                self.classifies[where] = self.scales.are_of_a_layer(logits)
            shape += " of a layer" * self.classifies.get(where, False)
        elif self.leaves_alone(site, where, logits):
            site, shape = None, f"{shape} of a layer"
        self.seam.saw(where, shape, replaced=site is not None)
        return site, where

    def tell_of_places(self) -> None:
        """Say which sites are in no file that is loaded when another loss is seen: a name that is mistyped."""
        loaded = [file for module in [*sys.modules.values()] if (file := getattr(module, "__file__", None))]
        for site in self.sites:
            if not any(is_file(file, site.file) for file in loaded):
                here = [name for file in loaded if not is_installed(file) and (name := short(file)) != file]
                hint = nearest(site.file, here).partition(" Known:")[0]
                self.seam.say(f"{site.text}: no file of this name is loaded so far.{hint}")
        self.places_told = True

    def leaves_alone(self, site: Site, where: str, logits: Tensor) -> bool:
        """Return whether these are the logits of a classifier, whose loss shares the line of a contrastive one.

        While all calls of a site have been of layers, as for a table of all keys, they are the site's loss. After
        another call they are not, and those of the same step get their own gradient back.
        """
        kind = self.kinds.setdefault(site, (self.seam.calls, []))
        if not logits.requires_grad or self.sites[site] is not None:
            return False
        if _is_of_a_layer(logits):
            if kind is True:
                self.seam.notes[f"{where}, a layer"] = "logits of a classifier there keep their loss"
            return kind is True
        if isinstance(kind, tuple) and kind[1]:
            if self.seam.calls > kind[0]:
                raise SeamError(
                    f"logits: calls at {where} first had the logits of a layer, and now those of a product of "
                    "embeddings: which loss is meant? Give each a line of its own"
                )
            for call in kind[1]:
                vars(call).update(vars(Logits(self.seam, None, where, OWN_LOSS, None, call.options)))
        self.kinds[site] = True
        return False

    def logits(
        self, site: Site, frame: FrameType, where: str, x: Tensor, positives: Tensor | None, own: str, **how: Any
    ) -> Logits | None:
        """Return the replacement of the gradient at the logits ``x`` of a call; None if there is nothing to replace.

        For ``positives`` and ``how`` see :class:`counterpoint.plugins.gradient.Logits`. ``own`` is the host's own loss,
        unless ``--own`` says it.
        """
        if not x.requires_grad or not torch.is_grad_enabled():
            return None
        biased = how.get("flipped") is not None
        seen = torch.where(how["flipped"], -x, x) if biased else x.movedim(how.get("keys", -1), -1)
        if (scale := self.scales.at(frame, where, seen, biased)) is None:
            self.seam.notes[f"{where}, at first"] = "its own loss, as its scale was not measured yet; give --scale"
            return None
        options = {"scale": scale, **how.pop("options", {})}
        if biased:
            options["bias"] = self.scales.bias(frame, where)
        elif (offset := self.scales.offset(where)) is not None:
            options["bias"] = named(offset, frame) if isinstance(offset, str) else offset
        own = self.seam.options.get("own") or own
        if isinstance(scale, float) and self.seam.spec != OWN_LOSS:  # of that, the scale is not measured
            self.seam.owns[id(site)] = own.replace("t=host", f"t={1 / scale:.6g}")
        if how.get("targets") is not None and how["targets"].requires_grad:
            self.seam.notes[f"{where}, targets"] = "their own gradient stays that of the script's loss"
        both = self.seam.options.get("way") == "both"
        last = [*self.scales.measured.get(where, ()), None][-2:][0]
        if last is not None and last["normalized"] and not last.get("distance"):  # no cosine is that much smaller
            how["floor"] = 2.1 * number_of(scale) + UNDERFLOW
        half = x.dtype in (torch.float16, torch.bfloat16) and not torch.is_autocast_enabled(x.device.type)
        told = self.seam.told(lambda: names_at(frame))
        if positives is not None and world_size() == 1:
            told = {name: of_keys(name, values, positives, seen.shape[-1]) for name, values in told.items()}
        found = Logits(self.seam, site, where, own, positives, options, both=both, later=float(half), told=told, **how)
        found.values = self.scales.values
        kind = self.kinds.get(site)
        if isinstance(kind, tuple) and (not kind[1] or kind[0] == self.seam.calls):
            self.kinds[site] = (self.seam.calls, [*kind[1], found])
        return found


def uses_scale(loss_fn: Objective) -> bool:
    """Return whether a part of the objective has the host's temperature."""
    return any(isinstance(part, FromHost) and part.name == "temperature" for part in loss_fn.modules())


def _is_of_a_layer(logits: Tensor) -> bool:
    """Return whether all products that lead to the logits have a factor that is nothing but parameters."""

    @functools.cache
    def above(node: Any) -> tuple[list[Any], list[Any]]:
        """Return the first products above a node, and the ends beside them."""
        products, ends, todo, seen = [], [], [node], {None}
        while todo and len(seen) < 100:
            if (node := todo.pop()) in seen:
                continue
            seen.add(node)
            factors = [function for function, _ in node.next_functions]
            elementwise = node.name().startswith("Mul") and all(above(f)[0] for f in factors)  # of two embeddings
            if elementwise or node.name().startswith(_PRODUCTS):
                products.append(node)
            elif factors:
                todo += factors
            else:
                ends.append(node)
        return products, ends

    def is_weight(node: Any, of_weights: bool = True) -> bool:
        products, ends = above(node)
        variables = [getattr(end, "variable", None) for end in ends]
        if products:  # of weights, such as LoRA's, not of rows that are looked up
            factors = [[f for f, _ in product.next_functions] for product in products]
            return of_weights and all(len(each) > 1 and all(is_weight(f, False) for f in each) for each in factors)
        return any(isinstance(x, nn.Parameter) and x.dim() > 1 for x in variables)

    def is_head(product: Any) -> bool:
        factors = [f for f, _ in product.next_functions]
        # compiled code may be a whole encoder, or all that leads from its inputs to logits
        of_embeddings = not product.name().startswith(_COMPILED) or any(above(f)[0] for f in factors)
        return of_embeddings and any(is_weight(f) for f in factors)

    products = above(logits.grad_fn)[0]
    return bool(products) and all(map(is_head, products))


def put(seam: Seam, owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Put ``function`` in the place of ``owner.name`` until the seam ends.

    Compiled code would mistake it for torch's own, and not call it from a file of the script.
    """
    seam.put(owner, name, torch.compiler.disable(function))


def replace_losses(calls: Calls, known: bool) -> None:
    """Replace cross entropy, ``nll_loss`` of a ``log_softmax``, and calls whose positives ``--positives`` names.

    The sites are ``known`` if they are those of a plugin, which may have positives beside labels.
    """
    log_softmaxes = WeakIdKeyDictionary()  # their results, with the replacement of the logits, and the logits
    put(calls.seam, nn.functional, "cross_entropy", _labeled(calls, nn.functional.cross_entropy, known))
    put(calls.seam, nn.functional, "nll_loss", _labeled(calls, nn.functional.nll_loss, known, log_softmaxes))
    named_ = any(positives is not None for positives in calls.sites.values())
    for name in _SUMS if named_ else _SUMS[:3]:
        for owner in OWNERS:
            if hasattr(owner, name):
                put(calls.seam, owner, name, _unlabeled(calls, getattr(owner, name), name, known, log_softmaxes))


def _labeled(
    calls: Calls, original: Callable[..., Tensor], known: bool, log_softmaxes: WeakIdKeyDictionary | None = None
) -> Callable[..., Tensor]:
    """Return ``cross_entropy``, or ``nll_loss`` of a recent ``log_softmax``, with logits of another gradient."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def loss(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        frame = caller()
        site, where = (None, "") if log_softmaxes is not None and _is_replaced(input) else calls.site(frame, input)
        if site is None:
            out = original(input, *args, **kwargs)
            if out.requires_grad:
                weights = calls.seam.weights
                out.register_hook(lambda g: weights.update({where: weights.get(where, 0.0) + g.detach().abs().sum()}))
            return out
        given = signature.bind(input, *args, **kwargs).arguments
        if given.get("weight") is not None:
            raise SeamError(f"logits: class weights at {where} have no counterpart in an objective")
        if calls.sites[site] is not None and log_softmaxes is not None:
            return original(input, *args, **kwargs)  # its log_softmax has these positives
        if calls.sites[site] is not None and not known and len(calls.sites) == 1:
            raise SeamError(f"logits: --positives: cross entropy at {where} has labels of its own")
        target: Tensor = given["target"]
        several = target.shape == input.shape and target.is_floating_point()  # numbers for every column
        keys = 1 if input.dim() > 2 else -1  # classes are at dimension 1
        positives = target.movedim(keys, -1) if several else target
        options = {"ignore_index": int(given.get("ignore_index", -100))}
        targets = targets_of(positives, input.movedim(keys, -1), given.get("label_smoothing", 0.0), **options)
        own = "infonce:t=host" if targets is not None or not several else "supcon:t=host"
        if log_softmaxes is None:
            positives = positives if targets is None else columns_of(targets, **options)
            call = calls.logits(site, frame, where, input, positives, own, keys=keys, options=options, targets=targets)
            if call is not None:
                return call.returned(original(call(input), *args, **kwargs))
            return original(input, *args, **kwargs)
        pending, taken = log_softmaxes.pop(input, (None, None))
        if taken is None:
            raise SeamError(
                f"logits: {where} gets probabilities whose log_softmax is not in the same file, or which were changed "
                "in between: write it as F.cross_entropy of the logits, then --site replaces it"
            )
        call = calls.logits(site, frame, where, taken, positives, own, keys=keys, options=options)
        out = original(input, *args, **kwargs)
        if call is not None:
            pending.__dict__ = vars(call)  # one state: see leaves_alone
            pending.returned(out)
        return out

    return loss


def _is_replaced(x: Tensor) -> bool:
    """Return whether these are log-probabilities of a ``log_softmax`` whose logits have another gradient."""
    node: Any = x.grad_fn
    while node is not None and not isinstance(getattr(node, "call", None), Logits):
        node = next((above for above, _ in node.next_functions), None)
    return node is not None and node.call.site is not None


def _unlabeled(
    calls: Calls, original: Callable[..., Tensor], name: str, known: bool, log_softmaxes: WeakIdKeyDictionary
) -> Callable[..., Tensor]:
    """Return a sum of exponentials, or ``logsigmoid``, with logits of another gradient at the sites."""
    files = {site.file for site in calls.sites}
    needs_positives = all(positives is None for positives in calls.sites.values())

    @functools.wraps(original)
    def call(input: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(input, Tensor) or not input.requires_grad:
            return original(input, *args, **kwargs)
        frame = caller()
        site, where = calls.place(frame)
        if needs_positives:
            if site is not None:
                calls.unlabeled[where] = name
            known_file = any(is_file(frame.f_code.co_filename, end) for end in files)
            if name != "log_softmax" or is_own(frame) or not known_file:
                return original(input, *args, **kwargs)
            pending = Logits(calls.seam, None, where, OWN_LOSS, None)
            out = original(pending(input), *args, **kwargs)
            log_softmaxes[out] = pending, input
            return out
        if site is None or (name == "exp" and input.numel() == 1):  # a learned scale's own exponential
            return original(input, *args, **kwargs)
        calls.seam.saw(where, f"logits {tuple(input.shape)}", replaced=True)
        text = calls.sites[site]
        if text is None:
            raise SeamError(f"logits: {where} is not a call of cross entropy: which columns are the positives? {HOW}")
        if input.dim() < 2:
            raise SeamError(f"logits: {where}: expected logits (..., anchors, keys), got {tuple(input.shape)}")
        how: dict[str, Any] = {"keys": -1 if name in ("exp", _BINARY) else keys_of(input, args, **kwargs)}
        if how["keys"] is None:
            raise SeamError(f"logits: {where}: expected one dimension of keys")
        if calls.seam.options.get("way") == "columns":
            how["keys"] = -2
        positives, how["targets"] = positives_of(text, frame, input.movedim(how["keys"], -1))
        how |= {"deduced": positives is None, "apart": known and name == "logsumexp"}
        of_numbers = positives is not None and positives.dtype == torch.bool and text not in ("gradient",)
        own = "supcon:t=host" if of_numbers and name == "log_softmax" else "infonce:t=host"
        if name == _BINARY:
            if world_size() > 1:
                raise SeamError(
                    f"logits: {where}: with several processes, binary logits come in parts. Name the function of the "
                    "embeddings instead: counterpoint inject function --replace 'FILE:FUNCTION(a, b, scale=c, bias=d)' "
                    "--as gather=true"
                )
            own = "siglip:t=host,b=host"
            if positives is None or how["targets"] is not None:
                raise SeamError(f"logits: {where}: binary logits need --positives, columns, and not by gradient")
            how["flipped"] = torch.ones_like(input, dtype=torch.bool).scatter(1, positives.unsqueeze(1), False)
        logits = calls.logits(site, frame, where, input, positives, own, **how)
        if logits is None:
            return original(input, *args, **kwargs)
        learns = calls.seam.spec != OWN_LOSS and any(each.requires_grad for each in logits.learned)
        if known or (name != "logsumexp" and not (name == "exp" and learns)):
            out = original(logits(input), *args, **kwargs)
            return logits.returned(out) if logits.apart else out
        given = input
        # the positives are taken from the same logits, beside the sum, perhaps before these were transposed
        if (base := input._base) is not None and base.dim() > 1 and base.data_ptr() == input.data_ptr():
            turned = base.shape == input.mT.shape and base.stride() == input.mT.stride()
            logits.keys = {-1: -2, -2: -1}.get(logits.keys, logits.keys) if turned else logits.keys
            input = base if turned or base.shape == input.shape else input
        if input not in calls.hooked:
            logits.hook(input)
            calls.hooked[input] = True
        return original(given, *args, **kwargs)

    return call


def positives_of(text: str, frame: FrameType, logits: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return each row's positive, a column or booleans, None for ``gradient``, and the soft targets that are named."""
    if text == "gradient":
        return None, None
    rows, columns = logits.shape[-2:]
    at = torch.arange(rows, device=logits.device)
    if text.lstrip("-").isdigit():
        labels: Any = torch.full((rows,), int(text), device=logits.device)
    elif text in ("diagonal", "half", "neighbor"):
        labels = {"diagonal": at, "half": (at + rows // 2) % rows, "neighbor": at ^ 1}[text]
    else:
        labels = named(text, frame)
    where = f"--positives {text} at {place(frame)}"
    if isinstance(labels, Tensor) and labels.shape == logits.shape:
        if labels.dtype == torch.bool:
            return labels, None
        if labels.is_floating_point() and bool((labels >= 0).all()):
            # equal numbers that sum to one are several positives, not soft targets
            are_equal = bool((labels.sum(-1) - 1).abs().max() < 1e-2) and targets_of(labels, logits) is None
            return (labels > 0, None) if are_equal else (columns_of(labels), labels)
    if not isinstance(labels, Tensor) or labels.shape[-1:] != (rows,) or labels.is_floating_point():
        got = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise SeamError(f"{where}: expected a column for each of {rows} rows, got {got}. {HOW}")
    if bool(((labels < 0) | (labels >= columns)).any()):
        raise SeamError(f"{where}: expected columns from 0 to {columns - 1}")
    return labels.expand(logits.shape[:-1]), None
