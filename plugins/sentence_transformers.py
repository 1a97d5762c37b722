"""sentence-transformers: losses for ``SentenceTransformerTrainer``.

**Where the loss sits.** The trainer takes a module as ``loss=`` and calls it with ``(sentence_features, labels)``,
one dict of features for each text column of the dataset.

**Which tensors are there.** The loss owns the model and embeds the columns itself, so it has ``(B, width)`` for each,
not normalized, not divided by a temperature. ``MultipleNegativesRankingLoss`` compares the first column with the second
one and the further ones, of the whole batch, the positive in the denominator, at ``scale=20``, which is ``t=0.05``.

**How to put an objective there.** This is the host's own interface, so change one line of the script::

    loss = counterpoint.plugins.sentence_transformers.ContrastiveLoss(model, "adnce:mu=0.4,t=0.05")
    trainer = SentenceTransformerTrainer(model=model, train_dataset=dataset, loss=loss)

More views are further columns, with ``columns="views"``. :class:`CachedContrastiveLoss` keeps the activations of only a
part of the batch in memory. Or leave the script as it is::

    counterpoint inject sentence_transformers --objective "adnce:mu=0.4,t=0.05" -- train.py

which puts it at the logits of the host's own losses, with all of their settings: directions, hardness, masks and so on.
Cached losses compute logits in parts: each is a batch for statistics over the batch (``mu=auto``).

**What is not possible.** Adversarial and mixed views, since words have no gradient: ``robust``, ``intcl`` and
``intnacl`` with ``alpha > 0`` are refused, ``mixnca`` leaves out its mixed terms.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from counterpoint.base import Objective
from counterpoint.batch.options import HARDNESS, Keys, chosen_directions
from counterpoint.batch.pairings import PAIRINGS
from counterpoint.batch.rules import Rule, as_rules
from counterpoint.checks import traced
from counterpoint.names import check_known, closest
from counterpoint.treatments import Treatment

from . import logits
from .call import checked_options, own_temperature
from .encoders import copy_of, follow
from .host import ONE_WAY, Host, loss_of
from .texts import Guide, equal_texts, with_ids

_COLUMNS = ("negatives", "views")
_LABELS = ("ids", "classes", "index")
_SIMILARITIES = ("cosine", "dot")
_TEXT = "text"

T = TypeVar("T")


class ContrastiveLoss(nn.Module):
    """Any objective, as a loss of sentence-transformers.

    ===========================================  =================================================================
    columns of the dataset                       what they are
    ===========================================  =================================================================
    anchor                                       embedded ``views`` times: each dropout mask is a view (SimCSE)
    anchor, positive                             pairs; the same text in both is SimCSE too
    anchor, positive, negative, ...              hard negatives of each sample, seen by all samples
    view, view, view, ... (``columns="views"``)  several texts with the same meaning
    ===========================================  =================================================================

    With ``infonce:t=0.05`` it is ``MultipleNegativesRankingLoss`` with its default ``scale=20``. The page *From
    sentence-transformers* has each of the host's losses with in-batch negatives in this form.

    Args:
        model: the ``SentenceTransformer``.
        objective: an objective, a treatment or a spec. With ``"infonce:t=0.05; guide=self; margin=0"``, the guide is
            the model as it is before the first step. A spec without ``t`` has its objective's 0.5, and is warned about.
        columns: what the columns from the third on are, ``negatives`` or ``views``.
        views: how many times a single column is embedded, at least 2; by default as many as the objective asks for,
            else 2. More than two are views of each other, whatever ``columns`` is.
        negative_weight: SimCSE's weight of hard negatives, added to the logits of a sample's own hard negatives.
        pairing: which pairs of rows are compared, see :mod:`counterpoint.batch.pairings`. By default ``one_way``, as
            in all losses of the host: anchors are the first column. Objectives whose paper compares other pairs, such
            as ArCL, keep those. With ``views``, as in SimCLR, all columns are anchors.
        labels: what a column ``label`` of integers means: ``ids`` (samples with the same label are not each other's
            negatives), ``classes`` (they are positives), ``index`` (the position of each sample in the data set, for
            ``sogclr``), or, by default, nothing.
        duplicates: ``text``: samples that share a text are not each other's negatives, nor are their texts as hard
            negatives, so batches may repeat texts.
        false_negatives: rules for the negatives that are not used, such as ``cp.margin(0.1)`` or ``"margin(0.1)"``; see
            :func:`counterpoint.margin`. By the model's own similarities, or those of ``guide``. Anchors that they leave
            without negatives count as zero, as in GISTEmbed; by a rule in the objective's text, they keep the least
            similar one. A first step of nothing else is an error.
        guide: a ``SentenceTransformer`` that judges, as in GISTEmbed.
        directions: which columns are compared, see :mod:`counterpoint.batch.joint`; the host's words, and
            ``doc_to_positive``.
        hardness_mode, hardness_strength: the host's weights of hard negatives, see :mod:`counterpoint.batch.joint`.
        similarity: ``cosine``, or ``dot`` for inner products of the embeddings as they are.
        in_batch, shared_negatives: False to compare with hard negatives only, or only with a sample's own.
        gather_across_devices: compare each process's anchors with all processes' texts, see
            :mod:`counterpoint.engine.distributed`. The loss is that of one process with the whole batch, and so is the
            gradient, averaged over processes as the trainer does.

    >>> loss = ContrastiveLoss(model, "adnce:mu=0.4,t=0.05 + 0.1*dp")  # doctest: +SKIP
    >>> trainer = SentenceTransformerTrainer(model=model, train_dataset=dataset, loss=loss)  # doctest: +SKIP
    """

    uses_gradient_cache = False

    @checked_options
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
        duplicates: str | None = None,
        false_negatives: Rule | str | Sequence[Rule | str] | None = None,
        guide: Any = None,
        in_batch: bool = True,
        shared_negatives: bool = True,
        directions: Sequence[str] = ("query_to_doc",),
        hardness_mode: str | None = None,
        hardness_strength: float = 0.0,
        similarity: str = "cosine",
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"{where}: model: expected a SentenceTransformer, got {type(model).__name__}; "
                f'the objective comes second: {where}(model, "infonce:t=0.05").'
            )
        self.objective: Objective = own_temperature(objective, where)
        if "adversarial" in self.objective.needs:  # without mixed views, objectives leave out terms
            raise ValueError(f"{where}: {self.objective} needs adversarial views, but words have no gradient.")
        t = [getattr(part, "temperature", None) for part in self.objective.modules()]
        if isinstance(objective, str) and 0.5 in t and not re.search(r"\b(t|temperature) *=", objective):
            warnings.warn(
                f"{where}: {objective!r} names no t, so t=0.5; the host's is 0.05.",
                stacklevel=3 + self.uses_gradient_cache,
            )
        for name, path in getattr(self.objective, "paths", {}).items():
            if path in ("label", "labels") and name in ("ids", "labels", "index"):
                labels = "classes" if name == "labels" else name
            elif name != "guide" or guide is None:
                here = f'a column "label" of the dataset as {name}=labels, duplicates="text", and guide=, a model'
                raise ValueError(f"{where}: {name}={path} is for `counterpoint inject`; this loss takes {here}.")
        views = (self.objective.views or 2) if views is None else views
        if views < 2:
            raise ValueError(f"{where}: views must be at least 2, got {views!r}.")
        words = {"columns": (columns, _COLUMNS), "labels": (labels, _LABELS)}
        words |= {"duplicates": (duplicates, (_TEXT,)), "similarity": (similarity, _SIMILARITIES)}
        words["pairing"] = pairing if isinstance(pairing, str) else None, tuple(PAIRINGS)
        for name, (value, known) in words.items():
            if value is not None:
                column = ' They are the values of a column "label": labels="ids".'
                column *= name == "labels" and not closest(str(value), known)
                check_known(f"{where}: unknown {name}", value, known, hint=column)
        if getattr(self.objective, "told", {}).get("duplicates") is True:  # dropout embeds equal texts differently
            duplicates = _TEXT
        if duplicates is not None and (labels == "classes" or gather_across_devices):
            other = 'labels="classes"' if labels == "classes" else "gather_across_devices="
            other += "." if labels == "classes" else '; give labels="ids" and a column "label" of numbers.'
            raise ValueError(f'{where}: duplicates="text" cannot be combined with {other}')
        if guide is not None and false_negatives is None and not getattr(self.objective, "rules", ()):
            raise ValueError(f"{where}: guide= needs false_negatives= beside it; cp.margin(0) is GISTEmbed's rule.")
        if guide is not None and (own := getattr(self.objective, "own_guide", None)):
            raise ValueError(f"{where}: guide= and guide={own} of the objective are two judges; give one.")
        self.directions: tuple[str, ...] = _as_directions(pairing, directions, hardness_mode, hardness_strength)
        self.similarity = similarity
        self.hardness_mode = hardness_mode
        self.hardness_strength: float = float(hardness_strength)
        self.model = model
        self.rules: tuple[Rule, ...] = as_rules(false_negatives)
        self._unread = bool(self.rules) and not isinstance(self.objective, Treatment)  # which counts for itself
        # not a submodule: it is neither trained nor saved
        self._guide = [] if guide is None else [Guide(guide, model)]
        self.duplicates = duplicates
        self.in_batch = in_batch
        self.shared_negatives = shared_negatives
        # more than two embeddings of a single column can only be views
        self.columns: str = "views" if views > 2 else columns
        self.labels = labels
        self.views: int = views
        self.negative_weight: float = float(negative_weight)
        self.pairing = pairing
        self.gather_across_devices = gather_across_devices

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        columns = self._repeat_single(sentence_features)
        known = self._known(columns)  # first, since a model may write into the columns
        return self._loss(self._embed(columns), labels, **known)

    def _known(self, columns: list[dict[str, Tensor]]) -> dict[str, Any]:
        """Return the equal texts of a batch, and the guide's embeddings of them."""
        views, hard = self._split(columns)
        known: dict[str, Any] = {}
        if self.duplicates is not None:
            known["ids"], known["hard_ids"] = equal_texts(views, hard)
        own = self.objective.own_guide if isinstance(self.objective, Treatment) else None
        if own and not self._guide:
            self._guide.append(Guide(copy_of(self.model), self.model))  # as it is before the first step
        elif own == "ema":
            follow(self._guide[0].guide, self.model)
        for guide in self._guide:
            known["guide"] = guide(views)
            known["hard_guide"] = torch.stack(guide(hard), 1) if hard else None
        return known

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None = None) -> Tensor:
        """Compute the loss of columns that are embedded already."""
        if self._guide or self.duplicates is not None:
            given = "guide=" if self._guide else "duplicates="
            raise ValueError(f"{type(self).__name__}: {given} reads texts, and embeddings alone do not have them.")
        return self._loss(embeddings, labels)

    def _repeat_single(self, sentence_features: Iterable[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return the columns; a single one ``views`` times, in separate dicts, since a model may write into them."""
        columns = list(sentence_features)
        return [dict(columns[0]) for _ in range(self.views)] if len(columns) == 1 else columns

    def _embed(self, sentence_features: list[dict[str, Tensor]]) -> list[Tensor]:
        try:  # all columns in one pass, if the host can
            embed = import_module("sentence_transformers.base.losses.merged_forward").embed_columns
        except ImportError:
            return [self.model(features)["sentence_embedding"] for features in sentence_features]
        return embed(self.model, sentence_features)  # type: ignore[no-any-return]

    def _loss(self, embeddings: list[Tensor], labels: Tensor | None, **known: Any) -> Tensor:
        """Compute the loss; all that is ``known``, but of hard negatives, are arguments of the objective."""
        views, hard = self._split(embeddings)
        hard_ids, hard_guide = known.pop("hard_ids", None), known.pop("hard_guide", None)
        if self.labels is not None:
            if labels is None:
                raise ValueError(f"{type(self).__name__}: labels={self.labels!r} needs a dataset with a column label.")
            if self.labels == "ids" and self.duplicates is not None:
                known["ids"], hard_ids = with_ids(known["ids"], hard_ids, labels)
            else:
                known["labels" if self.labels == "classes" else self.labels] = labels
        options: dict[str, Any] = {"gather": self.gather_across_devices, **known}
        options |= {"false_negatives": self.rules, "empty": "zero"} if self.rules else {}
        options |= {} if self.in_batch else {"in_batch": False}  # without hard negatives the objective refuses it
        if hard:
            own: dict[str, Any] = {"shared": self.shared_negatives, "own_log_weight": self.negative_weight}
            options["negatives"] = Keys(torch.stack(hard, 1), hard_ids, guide=hard_guide, **own)
        elif not self.shared_negatives:
            raise ValueError("shared_negatives=False: needs hard negatives, a third column.")
        if self.similarity == "dot":
            options["normalize"] = False
        if self.directions:
            options["directions"] = self.directions
            if self.hardness_mode is not None and self.hardness_strength:
                options["hardness"] = (self.hardness_mode, self.hardness_strength)
        options["pairing"] = self.pairing or ONE_WAY
        loss = loss_of(self.objective, *views, **options)
        if self._unread and not traced():  # reading the loss of every step would synchronize
            self._unread = False
            if float(loss.detach()) == 0.0:
                with torch.no_grad():  # raises if no anchor has a negative
                    loss_of(Treatment(self.objective, false_negatives=self.rules), *views, **options)
        return loss

    def _split(self, columns: list[T]) -> tuple[list[T], list[T]]:
        """Return the columns that are views, and those of hard negatives."""
        return (columns, []) if self.columns == "views" else (columns[:2], columns[2:])

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings of this loss for the model card."""
        names = ["columns", "views", "negative_weight", "pairing", "labels", "duplicates", "in_batch"]
        names += ["shared_negatives", "similarity", "gather_across_devices"]
        names += ["directions", "hardness_mode", "hardness_strength"] if self.directions else []
        config = {"objective": str(self.objective), **{name: getattr(self, name) for name in names}}
        if self.rules:
            config["false_negatives"] = [str(rule) for rule in self.rules]
        if self._guide:
            guide = self._guide[0].guide
            given = [getattr(part, "name_or_path", "") for part in guide.modules()]
            given += [getattr(getattr(guide, "model_card_data", None), "base_model", "")]  # of StaticEmbedding
            name = next(filter(None, given), "")  # a folder's own name, so that a card shows no path
            config["guide"] = (Path(name).name if Path(name).exists() else name) or str(guide)
        return config

    @property
    def citation(self) -> str:
        """The papers of the objective, for the model card."""
        papers = [getattr(part, "paper", "") for part in self.objective.modules()]
        papers += ["Gao et al. 2021, https://arxiv.org/abs/2101.06983"] * self.uses_gradient_cache
        found = (re.match(r"(\w+)(.*?) (\d{4}),.*?(https://[^\s,]+)", paper) for paper in papers)
        entry = r"@misc{\1\3,\n    author={\1\2},\n    year={\3},\n    url={\4}\n}"
        return "\n".join(dict.fromkeys(one.expand(entry).replace(" et al.", " and others") for one in found if one))


class CachedContrastiveLoss(ContrastiveLoss):
    """:class:`ContrastiveLoss` with sentence-transformers' gradient cache: large batches in little memory.

    The batch is embedded in parts without a graph, the loss gives the gradient of the embeddings, and each part is
    recomputed with a graph to propagate it. Loss and gradients are those of the whole batch, whose similarities are
    computed at once.

    Args:
        mini_batch_size: number of samples of a column in each part.
        mini_batch_num_tokens: size of the parts in tokens instead.
        show_progress_bar: show a progress bar over the parts.
        model, objective, options: as in :class:`ContrastiveLoss`.
    """

    uses_gradient_cache = True

    def __init__(
        self,
        model: Any,
        objective: Objective | str = "infonce:t=0.05",
        *,
        mini_batch_size: int = 32,
        mini_batch_num_tokens: int | None = None,
        show_progress_bar: bool = False,
        **options: Any,
    ) -> None:
        for name, size in (("mini_batch_size", mini_batch_size), ("mini_batch_num_tokens", mini_batch_num_tokens)):
            if (name != "mini_batch_num_tokens" or size is not None) and (type(size) is not int or size < 1):
                raise ValueError(f"CachedContrastiveLoss: {name} must be a whole number of at least 1, got {size!r}.")
        super().__init__(model, objective, **options)
        _gradcache()
        if any(type(part).__name__ == "StaticEmbedding" for part in [*model.children()][:1]):
            raise ValueError("CachedContrastiveLoss: StaticEmbedding has no row per text; use ContrastiveLoss instead.")
        self._of_batch: dict[str, Any] = {}  # what the texts of the batch say, between the passes of the cache
        self.mini_batch_size = mini_batch_size
        self.mini_batch_num_tokens = mini_batch_num_tokens
        self.show_progress_bar = show_progress_bar

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        columns = self._repeat_single(sentence_features)
        self._of_batch = self._known(columns)
        try:
            loss: Tensor = _gradcache().forward_cached(self, columns, labels)
        finally:
            self._of_batch = {}
        return loss

    # the interface of the host's mixin; its methods are called rather than inherited, so that importing this module
    # does not require sentence-transformers

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """Compute the loss of the whole batch from the embeddings of its parts."""
        loss = self._loss([torch.cat(parts) for parts in reps], labels, **self._of_batch)
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss

    def embed_minibatch(self, *args: Any, **options: Any) -> Any:
        return _gradcache().embed_minibatch(self, *args, **options)

    def embed_minibatch_iter(self, *args: Any, **options: Any) -> Iterator[Any]:
        return _gradcache().embed_minibatch_iter(self, *args, **options)  # type: ignore[no-any-return]

    def get_config_dict(self) -> dict[str, Any]:
        more = {"mini_batch_size": self.mini_batch_size, "mini_batch_num_tokens": self.mini_batch_num_tokens}
        return {**super().get_config_dict(), **more}


def _as_directions(
    pairing: str | None, directions: Sequence[str], hardness_mode: str | None, strength: float
) -> tuple[str, ...]:
    """Return the directions, checked; none if they are those of ``one_way`` without weights of hard negatives."""
    if strength and hardness_mode is None:
        raise ValueError(f"hardness_strength: needs hardness_mode= beside it: {', '.join(HARDNESS)}.")
    hardness = None if hardness_mode is None else (hardness_mode, strength)
    plain = tuple(directions) == ("query_to_doc",) and hardness is None
    chosen = () if plain else chosen_directions(pairing, directions, hardness)
    return chosen if len(chosen) > 1 or (hardness_mode and strength) else ()


def _gradcache() -> Any:
    try:
        return import_module("sentence_transformers.base.losses.gradcache").CachedLossMixin
    except ImportError as error:
        raise ImportError("CachedContrastiveLoss needs sentence-transformers 6.2 or later.") from error


SITES = {
    "multiple_negatives_ranking.py:MultipleNegativesRankingLoss.compute_loss_from_embeddings": "local_indices",
    "cached_multiple_negatives_ranking.py:CachedMultipleNegativesRankingLoss.calculate_loss": "local_batch",
    "multiple_negatives_ranking.py:MultiVectorMultipleNegativesRankingLoss.forward": None,
    "cached_multiple_negatives_ranking.py:CachedMultiVectorMultipleNegativesRankingLoss.calculate_loss": None,
    "cross_encoder/losses/multiple_negatives_ranking.py:MultipleNegativesRankingLoss.calculate_loss": None,
    "gist_embed.py:GISTEmbedLoss.forward": None,
    "cached_gist_embed.py:CachedGISTEmbedLoss.calculate_loss": None,
}
"""The functions of the host that have its losses, and the name of the positives' columns there."""

HOST = Host(
    name="sentence_transformers",
    title="scripts that train with losses of sentence-transformers",
    seam="MultipleNegativesRankingLoss and GISTEmbedLoss, cached or not: their logsumexp or cross entropy",
    tensors="logits (B, keys), cosines times scale, in all directions of the loss; masked false negatives are left "
    "out; of all processes' texts with gather_across_devices=True; the positive is in the denominator",
    spec="infonce:t=host",
    tested="sentence-transformers 6.2, transformers 5.24, torch 2.15, November 2026",
    package="sentence_transformers",
    extra="sentence",
    max_views=1,
    views="logits do not say which columns are views of one sample. Change one line instead: loss = "
    "counterpoint.plugins.sentence_transformers.ContrastiveLoss(model, ...), which takes views",
    inputs="words have no gradient",
    guided="Change one line instead: loss = counterpoint.plugins.sentence_transformers.ContrastiveLoss(model, "
    '"infonce:t=0.05; {told}")',
    options=("scale",),
    hint='t=host is one over the loss\'s own scale; ids=labels needs a column "label" of numbers in the data.',
    sites=SITES,
    scale="self.scale",
    before=partial(logits.before, sites=SITES, scale="self.scale"),
)
