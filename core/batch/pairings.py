"""From what users have - views, queues, hard negatives, logits, matrices - to positives and negatives.

=============  ==================================================================================================
pairing        anchors, positives and negatives, for ``m`` views of ``B`` samples
=============  ==================================================================================================
``views``      every view of every sample (``m B``); the other views of the sample; all views of the others. For
               two views this is SimCLR's NT-Xent with ``2 B - 2`` negatives.
``one_way``    the first view; the sample's other views; the other views of the others (SimCSE, GraphCL)
``symmetric``  ``one_way`` in both directions (CLIP)
``first_two``  views 1 and 2; all other views of the sample; views 1 and 2 of the others (debiased positives)
``pairs``      ``views`` for each pair of views, averaged (debiased positives, loss combination)
``arcl``       the first view; all pairs of views of the sample; views 1 and 2 of the others (ArCL, Algorithm 1)
``single``     the first view; none; the first view of the others (regularisers)
``queue``      the query; the key; the queue (MoCo). Chosen by ``queue=``. For ``(B, m, d)`` inputs the positives
               are the ``m (m - 1)`` pairs of different views, the negatives those of the first view.
=============  ==================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from .. import checks
from ..engine.distributed import Peers
from ..engine.embeddings import Others, Unit
from ..engine.negatives import DenseNegatives, Negatives
from ..engine.ring import RingNegatives
from ..engine.streamed import StreamedNegatives
from ..engine.tiles import Mask
from ..hyper import is_number, nearest
from ..vectors import EPS, EPS_HALF, unit
from .scores import Scores

# A key cannot count more often than e to this, of which float32 still holds a sum.
HEAVIEST = 80.0

# From so many pairs on they are streamed: on the CPU because that is faster, elsewhere because it is smaller.
STREAMED_CPU, STREAMED = 2**17, 2**26

# views that are anchors, and the views that they are compared with
Part = tuple[Sequence[Tensor], Sequence[Tensor]]


class Batch:
    """Embeddings of a batch and what is known about them; makes the scores of any pairing, each once."""

    def __init__(
        self,
        views: tuple[Tensor, ...],
        *,
        pairing: str | None,
        queue: Tensor | None,
        negatives: Tensor | None,
        negative_weight: float,
        ids: Tensor | None,
        labels: Tensor | None,
        queue_ids: Tensor | None,
        negative_ids: Tensor | None,
        prior: Tensor | None,
        adversarial: Tensor | None,
        mixed: Tensor | None,
        normalize: bool,
        tile: int | None = None,
    ) -> None:
        if pairing is not None and pairing not in PAIRINGS:
            raise ValueError(f"unknown pairing {pairing!r}.{nearest(str(pairing), PAIRINGS)}")
        if ids is not None and labels is not None:
            raise ValueError("give ids (known duplicates) or labels (classes, which also make positives), not both.")
        if not is_number(negative_weight) or negative_weight > HEAVIEST:
            raise ValueError(f"negative_weight: expected a number of at most {HEAVIEST:g}, got {negative_weight!r}.")
        if negative_weight and negatives is None:
            raise ValueError("negative_weight: needs negatives= beside it.")
        self.pairing, self.normalize, self.negative_weight = pairing, normalize, float(negative_weight)
        self.raw = self._views(views, queue is not None)
        self.size, self.width = self.raw[0].shape[0], self.raw[0].shape[-1]
        self.device = self.raw[0].device
        further = {
            "queue": queue, "negatives": negatives, "ids": ids, "labels": labels, "queue_ids": queue_ids,
            "negative_ids": negative_ids, "prior": prior, "adversarial": adversarial, "mixed": mixed,
        }  # fmt: skip
        for name, x in further.items():
            if isinstance(x, Tensor) and x.device != self.device:
                raise ValueError(f"{name}: on {x.device}, but view 1 is on {self.device}.")
        embeddings = (*self.raw, queue, negatives, adversarial, mixed)
        double = any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in embeddings)
        self.dtype = torch.float64 if double else torch.float32
        self.labels = labels if labels is None else checks.is_ids(labels, "labels", self.size)
        self.ids = self.labels if ids is None else checks.is_ids(ids, "ids", self.size)
        self.prior = self._prior(prior)
        self.queue = None if queue is None else self._keys(queue, "queue")
        self.negatives = None if negatives is None else self._extra(negatives, "negatives")
        self.adversarial = None if adversarial is None else self._extra(adversarial, "adversarial")
        self.mixed = None if mixed is None else self._extra(mixed, "mixed")
        self.queue_ids = self._key_ids(queue_ids, "queue_ids", "queue", self.queue)
        self.negative_ids = self._key_ids(negative_ids, "negative_ids", "negatives", self.negatives)
        if self.queue is not None and pairing not in (None, "queue"):
            raise ValueError(f"queue= is a pairing of its own (MoCo's), and so is {pairing!r}: give one.")
        if self.queue is not None and self.negatives is not None:
            raise ValueError("give queue= or negatives=, not both: append the hard negatives to the queue.")
        if self.queue is not None and self.ids is not None and self.queue_ids is None:
            raise ValueError("ids= or labels= with queue=: needs queue_ids= to know what the queue holds.")
        if self.negatives is not None and self.labels is not None:
            raise ValueError("labels= cannot be combined with negatives=: give ids= to rule out known negatives.")
        for name, value in (("adversarial", self.adversarial), ("mixed", self.mixed)):
            if value is not None and not (self.queue is None and self.negatives is None and self.labels is None):
                raise ValueError(
                    f"{name}= goes with pairings of the batch itself, not with queue=, negatives= or labels=."
                )
        self.peers: Peers | None = None
        self.first, self.total = 0, self.size
        self._asked = tile
        self.tile = self._tile(tile)
        self._made: dict[str, Scores] = {}
        self._views_ready: list[Tensor] | None = None
        self._stacked: Tensor | None = None
        self._gathered: dict[int, tuple[Tensor, Tensor]] = {}

    # ---- other processes -----------------------------------------------------------------------

    def facts(self) -> dict[str, int]:
        """What processes that share a batch must agree on, by name."""
        given = (*self.raw, self.negatives, self.adversarial, self.mixed)
        found = {
            "the number of views": len(self.raw),
            "the width of embeddings": self.width,
            "bits of embeddings": torch.finfo(self.dtype).bits,
            "which embeddings have a gradient": sum(
                (x is not None and x.requires_grad) << i for i, x in enumerate(given)
            ),
            "pairing=": 0 if self.pairing is None else 1 + list(PAIRINGS).index(self.pairing),
            "normalize=": int(self.normalize),
            "the rows of queue=": 0 if self.queue is None else len(self.queue),
        }
        for name, x in (("negatives", self.negatives), ("adversarial", self.adversarial), ("mixed", self.mixed)):
            found[f"{name}= per sample"] = 0 if x is None else x.shape[1]
        for name in ("labels", "ids", "negative_ids"):
            found[f"whether there are {name}="] = int(getattr(self, name) is not None)
        return found

    def share(self, peers: Peers) -> None:
        """Makes this the part of a batch that several processes share."""
        self.peers, self.first, self.total = peers, peers.first, peers.total
        self.tile = self._tile(self._asked)

    def everyone(self, x: Tensor) -> Tensor:
        """The rows of all processes, this one's first, of what has rows for each sample; gathered once."""
        if self.peers is None:
            return x
        if id(x) not in self._gathered:
            before = self.first * (len(x) // self.size)
            self._gathered[id(x)] = x, self.peers.gather(x).roll(-before, 0)
        return self._gathered[id(x)][1]

    # ---- what came in --------------------------------------------------------------------------

    def _views(self, views: tuple[Tensor, ...], queued: bool) -> list[Tensor]:
        for i, view in enumerate(views, 1):
            if isinstance(view, (list, tuple)):
                raise TypeError(f"view {i}: expected a tensor, got {type(view).__name__}: call loss_fn(*views).")
            checks.is_float(view, f"view {i}")
        if not views:
            raise ValueError("no embeddings: call with the views of a batch, loss_fn(z1, z2).")
        if len(views) == 1 and views[0].dim() == 3:
            views = views[0].unbind(1)
        dims = 3 if queued and views[0].dim() == 3 else 2
        for i, view in enumerate(views, 1):
            if view.dim() != dims or view.shape != views[0].shape:
                raise ValueError(
                    f"view {i}: expected shape {checks.shape(views[0]) if views[0].dim() == dims else '(batch, width)'}"
                    f"{' as view 1' if i > 1 else ''}, got {checks.shape(view)}."
                )
            if 0 in view.shape:
                raise ValueError(f"view {i}: empty, shape {checks.shape(view)}.")
            if view.device != views[0].device:
                raise ValueError(f"view {i}: on {view.device}, but view 1 is on {views[0].device}.")
            checks.is_finite(view, f"view {i}")
        return list(views)

    def _keys(self, keys: Tensor, what: str) -> Tensor:
        checks.is_matrix(keys, what, f"(keys, {self.width})")
        if keys.shape[1] != self.width or len(keys) == 0:
            turned = " It looks transposed: give queue.T." if keys.shape[0] == self.width else ""
            raise ValueError(f"{what}: expected shape (keys, {self.width}), got {checks.shape(keys)}.{turned}")
        return self.ready(checks.is_finite(keys, what))

    def _extra(self, given: Tensor, what: str) -> Tensor:
        """``(B, d)`` or ``(B, n, d)`` as ``(B, n, d)``, normalised."""
        checks.is_float(given, what)
        full = given.unsqueeze(1) if given.dim() == 2 else given
        if full.dim() != 3 or full.shape[0] != self.size or full.shape[2] != self.width or full.shape[1] == 0:
            raise ValueError(
                f"{what}: expected shape ({self.size}, {self.width}) or ({self.size}, n, {self.width}), "
                f"got {checks.shape(given)}."
            )
        return self.ready(checks.is_finite(full, what))

    def _tile(self, tile: int | None) -> int | None:
        """The tile in force, 0 for a matrix."""
        if tile is not None and (not is_number(tile) or tile != int(tile) or tile < 0):
            raise ValueError(f"tile: expected a whole number, 0 for a matrix, or None, got {tile!r}.")
        # neither a compiler nor torch.func can look into a pass over tiles
        if checks.compiling() or torch._C._are_functorch_transforms_active():
            return 0
        if tile is not None:
            return int(tile)
        views = 1 if self.queue is not None else len(self.raw)
        keys = self.total * (views if self.negatives is None else views + self.negatives.shape[1])
        pairs = self.size * views * (keys if self.queue is None else len(self.queue))
        return None if self._many(pairs) else 0

    def _many(self, pairs: int) -> bool:
        return pairs >= (STREAMED_CPU if self.device.type == "cpu" else STREAMED)

    def _prior(self, prior: Tensor | None) -> Tensor | None:
        if prior is None:
            return None
        if checks.is_float(prior, "prior").shape != (self.size,):
            raise ValueError(f"prior: expected one number per sample, shape ({self.size},), got {checks.shape(prior)}.")
        return checks.is_prior(prior)

    def _key_ids(self, ids: Tensor | None, what: str, of: str, keys: Tensor | None) -> Tensor | None:
        if ids is None:
            return None
        if keys is None or self.ids is None:
            raise ValueError(f"{what}: needs {of}= and ids= or labels= beside it.")
        if checks.is_tensor(ids, what).numel() != keys[..., 0].numel() or not checks.is_whole(ids):
            raise ValueError(f"{what}: expected one id per row of {of}, got shape {checks.shape(ids)} of {ids.dtype}.")
        return ids.reshape(-1).long()

    def ready(self, z: Tensor) -> Tensor:
        wide = z.to(self.dtype)
        return unit(wide, EPS_HALF if z.dtype == torch.float16 else EPS) if self.normalize else wide

    @property
    def views(self) -> list[Tensor]:
        if self._views_ready is None:
            self._views_ready = [self.ready(v) for v in self.raw]
        return self._views_ready

    def stacked(self) -> Tensor:
        """All views under one another, ``(m B, width)``."""
        if self._stacked is None:
            dtype = self.raw[0].dtype
            if self.tile == 0 or not self.normalize or any(v.dtype != dtype for v in self.raw):
                self._stacked = torch.cat(self.views)
            else:
                self._stacked = Unit.apply(EPS_HALF if dtype == torch.float16 else EPS, self.dtype, *self.raw)
                self._views_ready = [*self._stacked.split(self.size)]
        return self._stacked

    def under(self, views: Sequence[Tensor]) -> Tensor:
        """Views under one another."""
        if len(views) == 1:
            return views[0]
        return self.stacked() if views is self._views_ready else torch.cat([*views])

    # ---- what goes out -------------------------------------------------------------------------

    def scores(self, default: str) -> Scores:
        """The scores of the pairing that the caller asked for, else of ``default``."""
        if default == "single":  # regularisers look at the samples, whoever is compared with whom
            name = "single"
        elif self.queue is not None:
            name = "queue"
        elif self.negatives is not None and self.pairing is None:
            name = "one_way"
        else:
            name = self.pairing or default
        if name not in self._made:
            made = self._made[name] = PAIRINGS[name](self)
            for part in (made, made.adversarial):
                if part is not None:
                    part.neg.peers = self.peers
        return self._made[name]

    def need(self, views: int, name: str, exactly: bool = False) -> list[Tensor]:
        if self.negatives is not None and name not in ("one_way", "single"):
            raise ValueError(f"negatives= goes with the pairing one_way, not {name}.")
        if self.labels is not None and name not in ("views", "one_way", "single"):
            raise ValueError(f"labels= goes with the pairings views and one_way, not {name}.")
        if len(self.raw) < views or (exactly and len(self.raw) > views):
            wanted = f"{'exactly' if exactly else 'at least'} {views} views"
            raise ValueError(f"the pairing {name} needs {wanted}, got {len(self.raw)}.")
        if self.total < 2 and (self.negatives is None or name == "single"):
            raise ValueError(
                "a batch of one sample has no negatives: batches need at least 2 samples; a loader's drop_last=True "
                "leaves out a last, smaller one."
            )
        return self.views

    def build(self, name: str, parts: Sequence[Part], pos: Tensor, both: bool = False, hard: bool = False) -> Scores:
        """Scores of views as anchors, against views as keys and, if there are, ``hard`` negatives.

        ``both`` has keys as anchors, too, after the others.
        """
        scores = Scores(pos, self.against(parts, both, self.negatives if hard else None), layout=name)
        times = len(pos) // self.size
        if self.prior is not None:
            scores.prior = self.prior.to(pos.dtype).repeat(times).unsqueeze(1)
        if self.adversarial is None and self.mixed is None:
            return scores
        views = [view for mine, keys in parts for view in (*mine, *(keys if both else ()))]
        anchors = self.under(views)
        if self.adversarial is not None:
            # the adversarial view as the positive; the others, clean and adversarial, as negatives (IntNaCl, Eq. 5)
            clean, attacked = parts[0][1][0], self.adversarial[:, 0]
            positive = (anchors * attacked.repeat(times, 1)).sum(-1, keepdim=True)
            scores.adversarial = Scores(positive, self.against([(views, [clean, attacked])]))
        if self.mixed is not None:
            similar = (anchors.unsqueeze(1) * self.mixed.repeat(times, 1, 1)).sum(-1)
            scores.mixed = [Scores(s, scores.neg) for s in similar.split(1, dim=1)]
        return scores

    def against(self, parts: Sequence[Part], both: bool = False, hard: Tensor | None = None) -> Negatives:
        """The views of all other samples as negatives, and all samples' hard ones."""
        if self.peers is not None and both:
            parts, both = [part for mine, keys in parts for part in ((mine, keys), (keys, mine))], False
        if self.peers is not None and self.peers.ring:
            known = self.negative_weight, self.ids, self.negative_ids
            return self._counted(RingNegatives(self.peers, parts, hard, *known, self.tile or None, self.reach))
        # the samples' first hard negatives, then their second: like views, in the samples' order
        further = [] if hard is None else [*self.everyone(hard).unbind(1)]
        blocks = []
        for mine, keys in parts:
            left = self.under(mine)
            if self.peers is None:
                blocks.append((left, left if keys is mine else self.under([*keys, *further])))
            else:  # a block for each view, since a view has other rows than a block of keys
                right = self.under([*map(self.everyone, keys), *further])
                blocks += [(view, right) for view in mine]
        ids = hard_ids = None
        if self.ids is not None:
            ids = self.ids.repeat(len(blocks[0][0]) // self.size), self.everyone(self.ids)
            hard_ids = None if self.negative_ids is None else self.everyone(self.negative_ids)
        mask = Mask.of(self.total, len(parts[0][1]), len(further), self.negative_weight, ids, hard_ids)
        return self.negatives_of(blocks, mask, both)

    def negatives_of(self, blocks: Sequence[tuple[Tensor, Tensor]], mask: Mask, both: bool = False) -> Negatives:
        """All keys that ``mask`` leaves."""
        neg = self._counted(StreamedNegatives(blocks, both, mask, self.tile or None, self.reach, self.half))
        return neg.dense() if self.tile == 0 or (self.tile is None and not self._many(neg.pairs)) else neg

    @property
    def half(self) -> torch.dtype | None:
        """bfloat16 where embeddings came in it: unit vectors, and gradients of any size, can be multiplied in it."""
        return torch.bfloat16 if self.normalize and self.raw[0].dtype == torch.bfloat16 else None

    @property
    def reach(self) -> float | None:
        return 1.0001 if self.normalize else None  # a unit vector is up to rounding one

    @staticmethod
    def _counted(neg: StreamedNegatives) -> StreamedNegatives:
        if isinstance(neg.count, Tensor):
            checks.has_negatives(neg.count)
        return neg

    def arange(self, times: int = 1) -> Tensor:
        return torch.arange(self.size, device=self.device).repeat(times)


def _views(batch: Batch) -> Scores:
    z, m = batch.stacked(), len(batch.raw)
    views = batch.need(2, "views")
    if batch.labels is not None:
        return _labelled(batch, "views", views, views)
    if batch.tile != 0:
        return batch.build("views", [(views, views)], Others.apply(z, m))
    stacked = z.view(m, batch.size, -1)
    among = torch.einsum("and,bnd->anb", stacked, stacked).reshape(len(z), m)
    return batch.build("views", [(views, views)], _others(among, batch.size, m))


def _others(among: Tensor, n: int, m: int) -> Tensor:
    """``(m n, m)`` similarities of each view to all views of its sample, without that to itself."""
    view = torch.arange(m, device=among.device).repeat_interleave(n).unsqueeze(1)
    other = torch.arange(m - 1, device=among.device).expand(m * n, -1)
    return among.gather(1, other + (other >= view))


def _labelled(batch: Batch, name: str, mine: Sequence[Tensor], keys: Sequence[Tensor]) -> Scores:
    """Supervised: everything of an anchor's class is a positive, except itself, everything else a negative."""
    assert batch.labels is not None
    if batch.peers is not None and batch.peers.ring:
        raise ValueError("labels= make positives of other processes' samples: they need gather=True, not a ring.")
    matrix = batch.under(mine) @ torch.cat([batch.everyone(k) for k in keys]).T
    same = batch.labels.repeat(len(mine)).unsqueeze(1) == batch.everyone(batch.labels).repeat(len(keys))
    checks.has_negatives((~same).sum(1))
    pos_mask = same
    if keys is mine:
        view = torch.arange(len(mine), device=matrix.device).repeat_interleave(batch.size)
        pos_mask = same.scatter(1, (batch.arange(len(mine)) + batch.total * view).unsqueeze(1), False)
    # entries that are no positives hold a finite similarity that no average looks at
    scores = Scores(matrix, DenseNegatives(matrix, drop=same), pos_mask=pos_mask, layout=name)
    if batch.prior is not None:
        scores.prior = batch.prior.to(matrix.dtype).repeat(len(mine)).unsqueeze(1)
    return scores


def _one_way(batch: Batch) -> Scores:
    anchors, *others = batch.need(2, "one_way")
    if batch.labels is not None and batch.negatives is None:
        return _labelled(batch, "one_way", [anchors], others)
    pos = torch.stack([(anchors * o).sum(-1) for o in others], 1)
    # SimCSE, supervised: hard negatives are further keys
    return batch.build("one_way", [([anchors], others)], pos, hard=True)


def _symmetric(batch: Batch) -> Scores:
    a, b = batch.need(2, "symmetric", exactly=True)
    pos = (a * b).sum(-1, keepdim=True).repeat(2, 1)
    return batch.build("symmetric", [([a], [b])], pos, both=True)


def _first_two(batch: Batch) -> Scores:
    batch.stacked()
    views = batch.need(2, "first_two")
    a, b, *rest = views
    two = [a, b] if rest else views
    pos = torch.cat(
        [torch.stack([(x * o).sum(-1) for o in (y, *rest)], 1) for x, y in ((a, b), (b, a))],
    )
    return batch.build("first_two", [(two, two)], pos)


def _pairs(batch: Batch) -> Scores:
    pairs = list(combinations(batch.need(2, "pairs"), 2))
    pos = torch.cat([(x * y).sum(-1).repeat(2) for x, y in pairs]).unsqueeze(1)
    return batch.build("pairs", [(pair, pair) for pair in pairs], pos)


def _arcl(batch: Batch) -> Scores:
    views = batch.need(2, "arcl")
    pos = torch.stack([(x * y).sum(-1) for x, y in combinations(views, 2)], 1)
    scores = batch.build("arcl", [(views[:1], views[:2])], pos)
    scores.kept = pos[:, :1]
    return scores


def _single(batch: Batch) -> Scores:
    z = batch.need(1, "single")[0]
    alone = [z[:, 0] if z.dim() == 3 else z]
    return batch.build("single", [(alone, alone)], z.new_zeros(len(z), 1))


def _queue(batch: Batch) -> Scores:
    if batch.queue is None:
        raise ValueError("the pairing queue needs queue=.")
    if len(batch.raw) != 2:
        raise ValueError(f"queue= goes with two views, query and key, got {len(batch.raw)}.")
    query, key = batch.views[0], batch.views[1].detach()
    if query.dim() == 3:
        m = query.shape[1]
        if m == 1:
            pos = (query * key).sum(-1)
        else:
            # min over j != l: a key of the same view is not a positive in Algorithm 2
            pos = torch.stack([(query[:, j] * key[:, i]).sum(-1) for j in range(m) for i in range(m) if i != j], 1)
        query = query[:, 0]
    else:
        pos = (query * key).sum(-1, keepdim=True)
    ids = None
    if batch.queue_ids is not None and batch.ids is not None:
        ids = batch.ids, batch.queue_ids
    neg = batch.negatives_of([(query, batch.queue.detach())], Mask(ids=ids))
    scores = Scores(pos, neg, layout="queue")
    if batch.prior is not None:
        scores.prior = batch.prior.to(pos.dtype).unsqueeze(1)
    return scores


PAIRINGS: dict[str, Callable[[Batch], Scores]] = {
    "views": _views,
    "one_way": _one_way,
    "symmetric": _symmetric,
    "first_two": _first_two,
    "pairs": _pairs,
    "arcl": _arcl,
    "single": _single,
    "queue": _queue,
}
