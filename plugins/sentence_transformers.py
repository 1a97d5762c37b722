"""sentence-transformers: losses for ``SentenceTransformerTrainer``.

**Where the loss sits.** The trainer is given a module as ``loss=`` and calls it with ``(sentence_features, labels)``,
one dict of features for each text column of the dataset.

**Which tensors are there.** The loss owns the model and embeds the columns itself, so it has ``(B, width)`` for each,
not normalised, not divided by a temperature. ``MultipleNegativesRankingLoss`` compares the first column with the second
one and the further ones, of the whole batch, the positive in the denominator, at ``scale=20``, which is ``t=0.05``.

**How an objective gets there.** This is the host's own interface, so one line of the script changes::

    loss = counterpoint.plugins.sentence_transformers.ContrastiveLoss(model, "adnce:mu=0.4,t=0.05")
    trainer = SentenceTransformerTrainer(model=model, train_dataset=dataset, loss=loss)

More views are further columns, with ``columns="views"``. :class:`CachedContrastiveLoss` has the activations of only a
part of the batch in memory at a time. There is nothing to inject.

**What cannot be had.** Adversarial and mixed views, since words have no gradient: ``robust``, ``intcl`` and ``intnacl``
with ``alpha > 0`` are refused, ``mixnca`` has no mixed terms. :mod:`counterpoint.integrations.sentence.noise` has
losses that move and mix embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from counterpoint.hyper import nearest
from counterpoint.objective import Objective, Sum, as_objective

from .host import loss_of

COLUMNS = ("negatives", "views")
LABELS = ("ids", "classes")


class Terms(dict[str, Tensor]):
    """The weighted terms of a sum, by name; times a number, that multiple of the sum.

    The trainer logs terms that come as a dict. Losses that wrap another one, such as ``MatryoshkaLoss``, weigh it.
    """

    def sum(self) -> Tensor:
        return torch.stack(list(self.values())).sum()

    def __mul__(self, weight: float | Tensor) -> Tensor:
        return self.sum() * weight

    __rmul__ = __mul__


class ContrastiveLoss(nn.Module):
    """Any objective, as a loss of sentence-transformers.

    ===========================================  =================================================================
    columns of the dataset                       what they are
    ===========================================  =================================================================
    anchor                                       embedded ``views`` times: each dropout mask is a view (SimCSE)
    anchor, positive                             pairs; the same text in both is SimCSE too
    anchor, positive, negative, ...              hard negatives of each sample, seen by all samples
    view, view, view, ... (``columns="views"``)  several texts that say the same
    ===========================================  =================================================================

    With ``infonce:t=0.05`` it is ``MultipleNegativesRankingLoss`` at its default, ``scale=20``.

    Args:
        model: the ``SentenceTransformer``.
        objective: an objective or a spec.
        columns: what the columns from the third on are, ``negatives`` or ``views``.
        views: how often a single column is embedded, at least 2; by default as often as the objective asks for, else
            twice. More than two are views of each other, whatever ``columns`` says.
        negative_weight: SimCSE's weight of hard negatives, added to the logit of a sample's own ones.
        pairing: who is compared with whom, see :mod:`counterpoint.batch.pairings`. By default ``one_way``, as in all
            losses of the host: anchors are the first column. Objectives whose paper compares other pairs, such as
            ArCL, keep those. ``views`` is SimCLR.
        labels: what a column ``label`` of integers means: ``ids`` (samples with the same one are never each other's
            negatives), ``classes`` (and are positives), or, by default, nothing.
        gather_across_devices: compare each process's anchors with all processes' texts, see
            :mod:`counterpoint.engine.distributed`. The loss is that of one process with the whole batch, and so is the
            gradient, averaged over processes as the trainer does.
        log_terms: for a sum, return its :class:`Terms`; the trainer logs each and adds them up.

    >>> loss = ContrastiveLoss(model, "adnce:mu=0.4,t=0.05 + 0.1*dp")  # doctest: +SKIP
    >>> trainer = SentenceTransformerTrainer(model=model, train_dataset=dataset, loss=loss)  # doctest: +SKIP
    """

    makes: ClassVar[frozenset[str]] = frozenset()
    """What a subclass hands to objectives beside views, of :attr:`counterpoint.Objective.needs`."""

    def __init__(
        self,
        model: Any,
        objective: Objective | str = "infonce:t=0.05",
        *,
        columns: str = "negatives",
        views: int | None = None,
        negative_weight: float = 0.0,
        pairing: str | None = None,
        labels: str | None = None,
        gather_across_devices: bool = False,
        log_terms: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"{type(self).__name__}: model: expected a SentenceTransformer, got {type(model).__name__}; "
                f'the objective comes second: {type(self).__name__}(model, "infonce:t=0.05").'
            )
        self.objective = as_objective(objective)
        if "adversarial" in self.objective.needs - self.makes:  # without mixed views, what needs them has fewer terms
            raise ValueError(
                f"{type(self).__name__}: {self.objective} needs adversarial views, but words have no gradient; "
                "counterpoint.integrations.sentence.noise.PerturbedContrastiveLoss moves their embeddings instead."
            )
        views = (self.objective.views or 2) if views is None else views
        if views < 2:
            raise ValueError(f"{type(self).__name__}: views must be at least 2, got {views!r}.")
        for what, given, known in (("columns", columns, COLUMNS), ("labels", labels, (None, *LABELS))):
            if given not in known:
                hint = nearest(str(given), [name for name in known if name])
                raise ValueError(f"{type(self).__name__}: unknown {what} {given!r}.{hint}")
        self.model = model
        # each as a sum of its own, which holds its weight, too
        self.terms = nn.ModuleList(Sum([term]) for term in self.objective.terms())
        # more than two of a single column can be nothing but views
        self.columns, self.labels = "views" if views > 2 else columns, labels
        self.views, self.negative_weight = views, float(negative_weight)
        self.pairing = pairing
        self.gather_across_devices, self.log_terms = gather_across_devices, log_terms

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor | dict[str, Tensor]:
        terms = self._terms(self._embed(self._several(sentence_features)), labels)
        return terms if len(terms) > 1 and self.log_terms else terms.sum()

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None = None) -> Tensor:
        """The loss of columns that are embedded already."""
        return self._terms(embeddings, labels).sum()

    def _several(self, sentence_features: Iterable[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The columns; a single one several times, as dicts of its own, since a model may write into them."""
        columns = list(sentence_features)
        return [dict(columns[0]) for _ in range(self.views)] if len(columns) == 1 else columns

    def _embed(self, sentence_features: list[dict[str, Tensor]]) -> list[Tensor]:
        try:  # several columns in one pass, where the host can
            embed = import_module("sentence_transformers.base.losses.merged_forward").embed_columns
        except ImportError:
            return [self.model(features)["sentence_embedding"] for features in sentence_features]
        embedded: list[Tensor] = embed(self.model, sentence_features)
        return embedded

    def _terms(self, embeddings: list[Tensor], labels: Tensor | None, **extra: Tensor) -> Terms:
        """The loss of each term; ``extra`` are further views that an objective asks for, see ``Objective.forward``."""
        views, how = self._views(embeddings)
        how |= {"gather": self.gather_across_devices, **extra}
        if self.labels is not None:
            if labels is None:
                raise ValueError(f"{type(self).__name__}: labels={self.labels!r} needs a dataset with a column label.")
            how["ids" if self.labels == "ids" else "labels"] = labels
        terms = Terms()
        for (_, part), term in zip(self.objective.terms(), self.terms, strict=True):
            pairing = self.pairing or ("one_way" if part.pairing == "views" else None)
            loss = loss_of(term, *views, pairing=pairing, **how)  # type: ignore[arg-type]
            name = str(term)
            terms[name] = terms[name] + loss if name in terms else loss
        return terms

    def _views(self, embeddings: list[Tensor]) -> tuple[list[Tensor], dict[str, Any]]:
        if self.columns == "views" or len(embeddings) == 2:
            return embeddings, {}
        return embeddings[:2], {"negatives": torch.stack(embeddings[2:], 1), "negative_weight": self.negative_weight}

    def get_config_dict(self) -> dict[str, Any]:
        """What the model card says of this loss."""
        return {
            "objective": str(self.objective),
            "columns": self.columns,
            "views": self.views,
            "negative_weight": self.negative_weight,
            "pairing": self.pairing,
            "labels": self.labels,
            "gather_across_devices": self.gather_across_devices,
        }

    @property
    def citation(self) -> str:
        """The papers of the objective's parts, in BibTeX, for the model card."""
        papers = {part.name: part.paper for part in self.objective.modules() if isinstance(part, Objective)}
        return "\n".join(_entry(name, paper) for name, paper in papers.items() if paper)


class CachedContrastiveLoss(ContrastiveLoss):
    """:class:`ContrastiveLoss` with sentence-transformers' gradient cache: large batches in little memory.

    The batch is embedded in parts without a graph, the loss gives the gradient of the embeddings, and each part is
    embedded again to carry it on. Loss and gradients are those of the whole batch. The similarities of the batch are
    held at once. The terms of a sum are not logged.

    Args:
        mini_batch_size: samples of a column that are embedded at a time.
        mini_batch_num_tokens: pack by this many tokens instead.
        show_progress_bar: over the parts.
        model, objective, columns, views, negative_weight, pairing, labels, gather_across_devices: as in
            :class:`ContrastiveLoss`.
    """

    uses_gradient_cache = True

    def __init__(
        self,
        model: Any,
        objective: Objective | str = "infonce:t=0.05",
        *,
        columns: str = "negatives",
        views: int | None = None,
        negative_weight: float = 0.0,
        pairing: str | None = None,
        labels: str | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: int = 32,
        mini_batch_num_tokens: int | None = None,
        show_progress_bar: bool = False,
    ) -> None:
        super().__init__(
            model,
            objective,
            columns=columns,
            views=views,
            negative_weight=negative_weight,
            pairing=pairing,
            labels=labels,
            gather_across_devices=gather_across_devices,
            log_terms=False,
        )
        _gradcache()
        self.mini_batch_size, self.mini_batch_num_tokens = mini_batch_size, mini_batch_num_tokens
        self.show_progress_bar = show_progress_bar

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        loss: Tensor = _gradcache().forward_cached(self, self._several(sentence_features), labels)
        return loss

    # what the mixin asks of a loss; its methods are borrowed, since a base class would have to be there at import

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of the whole batch, from the embeddings of its parts."""
        loss = self.compute_loss_from_embeddings([torch.cat(parts) for parts in reps], labels)
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss

    def embed_minibatch(self, *args: Any, **how: Any) -> Any:
        return _gradcache().embed_minibatch(self, *args, **how)

    def embed_minibatch_iter(self, *args: Any, **how: Any) -> Iterator[Any]:
        found: Iterator[Any] = _gradcache().embed_minibatch_iter(self, *args, **how)
        return found

    def get_config_dict(self) -> dict[str, Any]:
        more = {"mini_batch_size": self.mini_batch_size, "mini_batch_num_tokens": self.mini_batch_num_tokens}
        return {**super().get_config_dict(), **more}

    @property
    def citation(self) -> str:
        paper = "Gao et al. 2021, scaling deep contrastive learning batch size under memory limited setup"
        return super().citation + f"\n{_entry('gradcache', paper)}"


def _entry(name: str, paper: str) -> str:
    return f"@misc{{{name},\n    note = {{{paper}}}\n}}"


def _gradcache() -> Any:
    try:
        return import_module("sentence_transformers.base.losses.gradcache").CachedLossMixin
    except ImportError as error:
        raise ImportError("CachedContrastiveLoss needs sentence-transformers 6.2 or later.") from error
