"""A pytest plugin that runs another library's own tests with our losses in place of its losses.

``python -m pytest -p peers --peer lightly tests/loss/test_ntx_ent_loss.py``, in a clone of that library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import counterpoint as cp

calls = 0


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        global calls
        calls += 1
        return function(*args, **options)

    return wrapped


def lightly() -> None:
    """Our criterion at the host's own settings; a negative temperature is left to the host."""
    from lightly import loss

    from counterpoint.plugins.lightly import ContrastiveLoss

    for class_, spec in ((loss.NTXentLoss, "infonce:t={!r}"), (loss.DCLLoss, "infonce:t={!r},denominator=negatives")):
        host, ours = class_.forward, counted(ContrastiveLoss.forward)

        def forward(self: Any, out0: Tensor, out1: Tensor, host: Any = host, ours: Any = ours, spec: str = spec) -> Any:
            if self.temperature < 0:
                return host(self, out0, out1)
            weight_fn, gathers = getattr(self, "weight_fn", None), self.gather_distributed
            criterion = ContrastiveLoss(spec.format(self.temperature), 0, gathers, weight_fn)
            criterion.memory_bank = getattr(self, "memory_bank", criterion.memory_bank)
            return ours(criterion, out0, out1)

        class_.forward = forward


def pytorch_metric_learning() -> None:
    """InfoNCE of each pair. SupCon's negatives of a pair are all other keys, the anchor's other positives included."""
    from pytorch_metric_learning import losses

    def ntxent(self: Any, pos: Tensor, neg: Tensor, indices: Any) -> Any:
        anchors, positives, others, _ = indices
        if not (len(anchors) and len(others)):
            return self.zero_losses()
        sign = 1 if self.distance.is_inverted else -1
        mask = others == anchors.unsqueeze(1)
        matrix = (sign * neg).expand(len(pos), -1)
        loss = cp.InfoNCE(self.temperature).from_scores(sign * pos, matrix, mask, reduction="none")
        found = {"losses": loss.to(pos.dtype), "indices": (anchors, positives), "reduction_type": "pos_pair"}
        return {"loss": found}

    def supcon(self: Any, matrix: Tensor, pos_mask: Tensor, neg_mask: Tensor) -> Any:
        if not (pos_mask.bool().any() and neg_mask.bool().any()):
            return self.zero_losses()
        s = matrix if self.distance.is_inverted else -matrix
        anchors, positives = pos_mask.nonzero(as_tuple=True)
        others = (pos_mask + neg_mask).bool()[anchors].scatter(1, positives.unsqueeze(1), False)
        scores = s[anchors, positives], s[anchors], others
        pairs = cp.InfoNCE(self.temperature).from_scores(*scores, reduction="none").to(s.dtype)
        loss = s.new_zeros(len(s)).index_add(0, anchors, pairs) / pos_mask.sum(1).clamp(min=1)
        indices = torch.arange(len(s), device=s.device)
        return {"loss": {"losses": loss, "indices": indices, "reduction_type": "element"}}

    losses.NTXentLoss._compute_loss = counted(ntxent)
    losses.SupConLoss._compute_loss = counted(supcon)


def open_clip() -> None:
    """CLIP's cross entropy of rows and of columns, as an objective of logits, equal to its own in every call."""
    from open_clip.loss import ClipLoss

    from counterpoint.plugins.logits import ContrastiveLoss

    criterion, host_forward = ContrastiveLoss("infonce:t=1"), ClipLoss.forward

    def forward(
        self: Any,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Any,
        logit_bias: Any = None,
        output_dict: bool = False,
    ) -> Any:
        both = self.get_logits(image_features, text_features, logit_scale, logit_bias=logit_bias)
        labels = self.get_ground_truth(image_features.device, len(both[0]))
        loss = sum(criterion(logits, labels) for logits in both) / 2
        own = host_forward(self, image_features, text_features, logit_scale, logit_bias)
        torch.testing.assert_close(loss, own, rtol=1e-5, atol=1e-6)
        return {"contrastive_loss": loss} if output_dict else loss

    ClipLoss.forward = counted(forward)


def sentence_transformers() -> None:
    """The host's losses with our values: each call builds our loss from the host's settings. Models are local ones."""
    import peer_models
    from sentence_transformers import util
    from sentence_transformers.sentence_transformer import losses

    from counterpoint.plugins.sentence_transformers import ContrastiveLoss

    peer_models.use()
    similarities = {util.cos_sim: "cosine", util.dot_score: "dot"}
    names = ("directions", "hardness_mode", "hardness_strength", "gather_across_devices")
    host_ranking = losses.MultipleNegativesRankingLoss.compute_loss_from_embeddings

    def ranking(self: Any, embeddings: list[Tensor], labels: Any = None) -> Any:
        if self.partition_mode != "joint":
            return host_ranking(self, embeddings, labels)
        settings = {name: getattr(self, name) for name in names}
        similarity = similarities[self.similarity_fct]
        ours = ContrastiveLoss(torch.nn.Identity(), cp.InfoNCE(1 / self.scale), similarity=similarity, **settings)
        return ours.compute_loss_from_embeddings(embeddings, labels)

    def cached_ranking(
        self: Any, reps: list[list[Tensor]], labels: Any = None, *, with_backward: bool = False
    ) -> Tensor:
        return passed_back(ranking(self.loss, [torch.cat(x) for x in reps]), with_backward)

    def guided(self: Any, embeddings: list[Tensor], guides: list[Tensor]) -> Tensor:
        contrast = ["query_to_query"] * self.contrast_anchors + ["doc_to_positive"] * self.contrast_positives
        hard = {}
        if len(embeddings) > 2:
            hard = {"negatives": cp.Keys(torch.stack(embeddings[2:], 1), guide=torch.stack(guides[2:], 1))}
        rule = cp.margin(self.margin, self.margin_strategy)
        return cp.InfoNCE(self.temperature)(  # type: ignore[no-any-return]
            *embeddings[:2], guide=guides[:2], false_negatives=rule, empty="zero", **hard,
            directions=("query_to_doc", *contrast), gather=self.gather_across_devices,
        )  # fmt: skip

    def gist(self: Any, features: Any, labels: Any) -> Tensor:
        from sentence_transformers.base.losses.merged_forward import embed_columns

        from counterpoint.plugins.texts import Guide

        columns = [*features]
        guides = [{**column} for column in columns]
        return guided(self, embed_columns(self.model, columns), Guide(self.guide, self.model)(guides))

    def cached_gist(self: Any, reps: Any, guides: Any, *, with_backward: bool = False) -> Tensor:
        embeddings, guided_by = ([torch.cat(x) for x in parts] for parts in (reps, guides))
        return passed_back(guided(self, embeddings, guided_by), with_backward)

    def passed_back(loss: Tensor, with_backward: bool) -> Tensor:
        if with_backward:
            loss.backward()
        return loss.detach() if with_backward else loss

    losses.MultipleNegativesRankingLoss.compute_loss_from_embeddings = counted(ranking)
    losses.CachedMultipleNegativesRankingLoss.calculate_loss = counted(cached_ranking)
    losses.GISTEmbedLoss.forward = counted(gist)
    losses.CachedGISTEmbedLoss.calculate_loss = counted(cached_gist)


def sentence_transformers_alone() -> None:
    """The host's own losses, with the same local models."""
    import peer_models

    peer_models.use()


PEERS = {
    "lightly": lightly,
    "pytorch-metric-learning": pytorch_metric_learning,
    "open_clip": open_clip,
    "sentence-transformers": sentence_transformers,
    "sentence-transformers alone": sentence_transformers_alone,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--peer", choices=[*PEERS], required=True)


def pytest_configure(config: pytest.Config) -> None:
    PEERS[config.getoption("--peer")]()


def pytest_runtest_setup() -> None:
    np.random.seed(0)  # peers draw unseeded inputs, and compare to five digits
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"our losses were called {calls} times")
