"""The golden cases (values and gradients at 50 digits) and how each maps to the public interface."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from specs import of_scores
from torch import Tensor

import counterpoint as cp

_data = json.loads(Path(__file__).with_name("golden.json").read_text())
CASES: list[dict[str, Any]] = _data["cases"]
TOLERANCE: dict[str, float] = _data["meta"]["float64_tolerance"]

DENOMINATORS = {"image": "with_positive", "graph": "mean", "sentence": "all"}


def inputs(case: dict[str, Any], dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The case's arguments as leaf tensors."""
    found = {}
    for name, ref in case["args"].items():
        group, key = ref.rsplit("/", 1)
        found[name] = torch.tensor(_data["inputs"][group][key], dtype=dtype)
        if name == "mixneg" and found[name].dim() == 2:  # (B, 0): no mixed views
            found[name] = found[name].unsqueeze(2)
        found[name].requires_grad_()
    return found


def evaluate(case: dict[str, Any], args: dict[str, Tensor]) -> Tensor:
    """The value of a case by the public interface."""
    p = dict(case["params"])
    t = p.pop("t", 0.5)
    return FUNCTIONS[case["fn"]](p, t, **args)


def _scores(loss: Callable[..., cp.Objective]) -> Callable[..., Tensor]:
    def run(p: dict[str, Any], t: float, pos: Tensor, neg: Tensor, **more: Tensor) -> Tensor:
        return of_scores(loss(p, t), pos, neg, **more)

    return run


def _views(loss: Callable[..., cp.Objective], **how: Any) -> Callable[..., Tensor]:
    def run(p: dict[str, Any], t: float, **views: Tensor) -> Tensor:
        return loss(p, t)(*(views["views"].unbind(1) if [*views] == ["views"] else views.values()), **how)

    return run


def _adnce(p: dict[str, Any], t: float) -> cp.ADNCE:
    kind = p.get("kind", "gaussian")
    mu = p.get("mu", p.get("m", 0.7))
    sigma = p.get("sigma", p.get("n", 1.0))
    return cp.ADNCE(t, mu, sigma, kind, DENOMINATORS[p.get("denominator", "image")])


def _adnce_views(p: dict[str, Any], t: float, z1: Tensor, z2: Tensor) -> Tensor:
    two_view = p.get("denominator", "image") == "image"
    return _adnce(p, t)(z1, z2, pairing="views" if two_view else "one_way")


def _prior(p: dict[str, Any], default: float = 0.1) -> float:
    return p.get("tau_plus", default)


def _debiased(p: dict[str, Any], t: float) -> cp.DebiasedPositives:
    aggregation = {"loss_combination": "combination"}.get(p.get("agg", "loss_combination"), p.get("agg"))
    return cp.DebiasedPositives(t, _prior(p), aggregation or "combination", floor=p.get("floor", False))


def _debiased_views(p: dict[str, Any], t: float, views: Tensor) -> Tensor:
    return _debiased({"agg": "group_mean", **p}, t)(*views.unbind(1))


def _estimator(p: dict[str, Any], key: str = "G") -> dict[str, Any]:
    return {"estimator": p.get(key, "g2"), "prior": _prior(p, 0.01), "beta": p.get("beta", 1.0)}


WEIGHT = {"hat": "clean", "one": "one"}


def _robust(p: dict[str, Any], t: float, adv: Tensor, advneg: Tensor, v: Tensor, **clean: Tensor) -> Tensor:
    loss = cp.Robust(t, weight=WEIGHT[p.get("w", "one")], detach_weights=p.get("detach_w", True), **_estimator(p))
    # with w = 1 the clean scores are not part of the term
    pos, neg = clean.get("pos", adv), clean.get("neg", advneg)
    return of_scores(loss, pos, neg, v=v, adversarial=(adv, advneg))


def _integrated(kind: type[cp.Objective]) -> Callable[..., Tensor]:
    def run(p: dict[str, Any], t: float, pos: Tensor, neg: Tensor, v: Tensor, **more: Tensor) -> Tensor:
        named = {k: p[k] for k in ("base", "lam") if k in p}
        loss = kind(
            temperature=t,
            robust_estimator=p.get("G2", "g2"),
            alpha=p.get("alpha", 1.0),
            weight=WEIGHT[p.get("w", "hat")],
            **_estimator(p, "G1"),
            **named,
        )
        mixed = (more["mix"], more["mixneg"]) if "mix" in more else None
        return of_scores(loss, pos, neg, v=v, adversarial=(more["adv"], more["advneg"]), mixed=mixed)

    return run


def _mixnca(p: dict[str, Any], t: float, pos: Tensor, neg: Tensor, v: Tensor, mix: Tensor, mixneg: Tensor) -> Tensor:
    return of_scores(cp.MixNCA(t, lam=p["lam"], **_estimator(p)), pos, neg, v=v, mixed=(mix, mixneg))


def _dp(p: dict[str, Any]) -> cp.DistancePolarization:
    reduction = {"sum": "batch_sum"}.get(p.get("reduction", "sum"), p.get("reduction"))
    return cp.DistancePolarization(p.get("dplus", 0.1), p.get("dminus", 0.5), reduction)


def _lmcl(p: dict[str, Any], t: float, pos: Tensor, neg: Tensor, phi: Tensor) -> Tensor:
    return cp.InfoNCE(t).from_scores(pos, neg) + p.get("lam", 0.1) * _dp(p)(phi)


def _arcl_moco(p: dict[str, Any], t: float, z1: Tensor, z2: Tensor, queue: Tensor) -> Tensor:
    kind = cp.AAL if p.get("align") == "mean" else cp.ArCL
    return kind(cp.InfoNCE(t), denominator="worst" if p.get("include_pos") else "paper")(z1, z2, queue=queue)


def _simcse(p: dict[str, Any], t: float, z1: Tensor, z2: Tensor, z3: Tensor | None = None) -> Tensor:
    negatives = None if z3 is None else cp.Keys(z3, own_log_weight=p.get("hard_weight", 0.0))
    return cp.InfoNCE(t)(z1, z2, pairing="one_way", negatives=negatives)


def _adnce_weights(p: dict[str, Any], t: float, neg: Tensor) -> Tensor:
    return cp.ADNCE(t, p["m"], p.get("n", 1.0), p["kind"]).weights(neg)


def _supcon(p: dict[str, Any], t: float) -> cp.SupCon:
    return cp.SupCon(t, average=p["average"], denominator=p["denominator"])


def _supcon_views(p: dict[str, Any], t: float, z1: Tensor, z2: Tensor) -> Tensor:
    return _supcon(p, t)(z1, z2, labels=torch.tensor(p["labels"]))


def _joint(p: dict[str, Any], t: float, z1: Tensor, z2: Tensor, z3: Tensor | None = None, **how: Any) -> Tensor:
    mode = {"hardness": (p["mode"], p["strength"])} if p["mode"] else {}
    return cp.InfoNCE(t)(z1, z2, directions=p["directions"].split(), negatives=z3, **mode, **how)


def _sogclr(p: dict[str, Any], t: float, z1: Tensor, z2: Tensor) -> Tensor:
    """The second step, after one of the views in the other order."""
    kind = cp.ISogCLR if "eta" in p else cp.SogCLR
    loss_fn, index = kind(t, size=len(z1) + 2, **p).to(z1.dtype), torch.arange(len(z1)) + 1
    if isinstance(loss_fn, cp.ISogCLR):
        loss_fn.temperatures.fill_(t)  # which were a float32
    loss_fn(z1.detach(), z2.detach(), index=index, pairing="views")
    return loss_fn(z2, z1, index=index, pairing="views")


def _alpha(p: dict[str, Any], t: float) -> cp.AlphaCL:
    return cp.AlphaCL(t, p["p"], p.get("normalise", True))


def _soft(p: dict[str, Any], t: float, pos: Tensor, neg: Tensor, v: Tensor, advneg: Tensor) -> Tensor:
    scores = cp.Scores(pos, cp.MatrixNegatives(neg), guide_pos=v.detach())
    scores.neg.set_guide(cp.MatrixNegatives(advneg.detach()))
    return cp.SoftTargets(t, tau=p["tau"], weight=p["weight"]).compute_loss(lambda _: scores, pos.device)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "infonce_sum": _scores(lambda p, t: cp.InfoNCE(t)),
    "infonce_mean": _scores(lambda p, t: cp.InfoNCE(t, denominator="mean")),
    "infonce_sum_nopos": _scores(lambda p, t: cp.InfoNCE(t, denominator="negatives")),
    "dcl": _scores(lambda p, t: cp.DCL(t, _prior(p))),
    "hcl": _scores(lambda p, t: cp.HCL(t, _prior(p), p["beta"], detach_weights=p.get("detach_weights", False))),
    "adnce": _scores(_adnce),
    "mean_variance": _scores(lambda p, t: cp.MeanVariance(t, p.get("phi2", 1.0))),
    "alpha_cl_direct": _scores(_alpha),
    "alpha_cl_direct_unnorm": _scores(lambda p, t: cp.AlphaCL(t, p["p"], normalize=False)),
    "chi2_variational": lambda p, t, pos, neg: -cp.mutual_information(pos, neg, "chi2"),
    "supcon": _scores(_supcon),
    "soft": _soft,
    "siglip": _scores(lambda p, t: cp.SigLIP(t, p["b"])),
    "rince": _scores(lambda p, t: cp.RINCE(t, q=p["q"], lam=p["lam"])),
    "arctanh": _scores(lambda p, t: cp.Arctanh()),
    "psl": _scores(lambda p, t: cp.PSL(t, p["surrogate"])),
    "drrl": _scores(lambda p, t: cp.DrRL(p["m"], p["omega"], p["weight"], p["epsilon"])),
    "sogclr": _sogclr,
    "matryoshka": _views(lambda p, t: cp.Matryoshka(cp.InfoNCE(t), **p)),
    "gor": lambda p, t, phi: cp.SpreadOut(p["mean"])(phi),
    "supcon_views": _supcon_views,
    "joint": _joint,
    "kl_dro": _scores(lambda p, t: cp.CLDRO(p["eta"], shared=p.get("alpha_mode") == "shared")),
    "kl_dro_fixed_alpha": _scores(lambda p, t: cp.CLDRO(p["eta"], alpha=p["alpha"])),
    "chi2_dro": _scores(lambda p, t: cp.CLDRO(p["eta"], "chi2", scale=p.get("c", 0.25), nonneg=p.get("nonneg", True))),
    "debiased_pos": _scores(_debiased),
    "nca": _scores(lambda p, t: cp.NCA(t, count_positives=p.get("MN", False), **_estimator(p))),
    "mixnca": _mixnca,
    "l_robust": _robust,
    "intcl": _integrated(cp.IntCL),
    "intnacl": _integrated(cp.IntNaCl),
    "lmcl": _lmcl,
    "adnce_weights_rows": _adnce_weights,
    "worst_case_weights": lambda p, t, neg: cp.worst_case_weights(neg, t),
    "tau_from_radius": lambda p, t, neg: cp.tau_from_radius(neg, p["eta"]).squeeze(1),
    "kl_alpha_rows": lambda p, t, neg: cp.kl_alpha(neg, p["eta"]).squeeze(1),
    "chi2_ratio_rows": lambda p, t, neg: cp.chi2_ratio(neg, p["eta"], p.get("c", 0.25)),
    "nt_xent": _views(lambda p, t: cp.InfoNCE(t)),
    "clip_symmetric": _views(lambda p, t: cp.InfoNCE(t), pairing="symmetric"),
    "simcse": _simcse,
    "graphcl": _views(lambda p, t: cp.InfoNCE(t, denominator="negatives"), pairing="one_way"),
    "moco": lambda p, t, q, k, queue: cp.InfoNCE(t)(q, k, queue=queue),
    "curl": lambda p, t, za, zpos, W: cp.InfoNCE(1.0).from_logits(za @ W @ zpos.detach().T),
    "dcl_views": _views(lambda p, t: cp.DCL(t, _prior(p))),
    "hcl_views": _views(lambda p, t: cp.HCL(t, _prior(p), p["beta"])),
    "adnce_views": _adnce_views,
    "alpha_cl_views": _views(_alpha),
    "debiased_pos_views": _debiased_views,
    "arcl_simclr": _views(lambda p, t: cp.ArCL(cp.InfoNCE(t))),
    "aal_simclr": _views(lambda p, t: cp.AAL(cp.InfoNCE(t))),
    "arcl_moco": _arcl_moco,
    "arcl_alignment": lambda p, t, views: cp.worst_alignment(views),
    "dp_r0": lambda p, t, phi: cp.pairs_in_margin(phi, p.get("dplus", 0.1), p.get("dminus", 0.5)),
    "dp_r1": lambda p, t, phi: _dp(p)(phi),
    "lmcl_views": lambda p, t, z1, z2: (cp.InfoNCE(t) + p.get("lam", 0.1) * _dp(p))(z1, z2),
}
