"""Code bases that neither documentation nor tests had named before, and whatever came out of them."""

from __future__ import annotations

from bed import IN, SITE, UNKNOWN, Member

MIND_EYE = """
absent("accelerate", "clip", "diffusers", "generative_models", "generative_models.sgm", "generative_models.sgm.util")
absent("h5py", "IPython", "IPython.display", "matplotlib", "matplotlib.pyplot", "nilearn", "numpy.random", "omegaconf")
absent("pandas", "PIL", "requests", "skimage", "skimage.io", "sklearn", "torchvision", "torchvision.transforms")
absent("torchvision.utils", "tqdm", "tqdm.auto", "webdataset")
losses = load("src/utils.py", "mind_eye_utils")
"""
COMET = """
losses = load("models/losses.py", "comet_losses")
patients, trials, times = torch.arange(12) % 4, torch.arange(12) // 2, nn.Linear(16, 6 * 8)


def loss(a, b):
    a, b = (times(z).view(12, 6, 8) for z in (a, b))
    return {loss}


train(loss, modules=[times])
"""
PYLATE = """
package("pylate", "pylate"), package("pylate.losses", "pylate/losses"), stub("pylate.models", ColBERT=nn.Module)
nn.Module.skiplist_mask = staticmethod(lambda input_ids, skiplist: torch.ones_like(input_ids, dtype=torch.bool))
alone = dict(all_gather=None, all_gather_with_gradients=None, get_rank=lambda: 0, get_world_size=lambda: 1)
vars(package("pylate.utils", "pylate/utils")).update(alone)
from pylate.losses.contrastive import Contrastive


class Own(nn.Module):
    skiplist, do_query_expansion = [], False

    def forward(self, features):
        return features


criterion, tokens = Contrastive(Own(), temperature=0.05), nn.Linear(16, 4 * 8)


def loss(a, b):
    ones = {"attention_mask": torch.ones(12, 4), "input_ids": torch.ones(12, 4).long()}
    return criterion([{"token_embeddings": norm(tokens(z).view(12, 4, 8)), **ones} for z in (a, b)])


train(loss, modules=[tokens])
"""
DUAL = """
losses = load("loss_func.py", "dual_loss_func")
criterion, head, labels = losses.{name}(0.5, 0.1), nn.Linear(16, {width}), torch.randint(3, (12,))


def loss(a, b):
    {classes}
    return criterion({"predicts": classes, "cls_feats": a, "label_feats": features}, labels)


train(loss, modules=[head])
"""

MEMBERS = {
    "MindEyeV2, soft": Member(
        "MindEyeV2",
        MIND_EYE + "train(lambda a, b: losses.soft_clip_loss(norm(a), norm(b), temp=0.05))\n",
        [("utils.py", UNKNOWN, 0, "")],
    ),
    "MindEyeV2, mixed": Member(
        "MindEyeV2",
        MIND_EYE
        + """

def loss(a, b):
    order, shares, mixed = torch.randperm(12), torch.rand(12), torch.rand(12) < 0.5
    shares[~mixed] = 1
    return losses.mixco_nce(norm(a), norm(b), temp=0.1, perm=order, betas=shares, select=mixed)


train(loss)
""",
        [("utils.py", IN, 10, "soft targets probs")] * 2,
        SITE,
    ),
    "SimMTM": Member(
        "SimMTM",
        """
losses = load("SimMTM_Classification/code/loss.py", "simmtm_loss")
args = types.SimpleNamespace(temperature=0.2, positive_nums=3)
contrast, rebuild = losses.ContrastiveWeight(args), losses.AggregationRebuild(args)
weights, head = losses.AutomaticWeightedLoss(2), nn.Linear(16, 10)


def loss(a, b):
    z = torch.cat([a, b])
    contrastive, similarities, _, _ = contrast(z)
    _, again = rebuild(similarities, z.view(24, 2, 8))
    return weights(contrastive, head(again.flatten(1)).square().mean())


train(loss, modules=[weights, head])
""",
        [("loss.py", "supcon", 5, "mask")],
        SITE,
    ),
    "brainmagick": Member(
        "brainmagick",
        """
absent("dora", "dora.log", "flashy", "julius", "mne")
package("bm", "bm"), absent("bm.features", "bm.norm")
criterion, all_times = load("bm/losses.py", "bm.losses").ClipLoss(), torch.ones(12, 1, 4, dtype=torch.bool)
train(lambda a, b: criterion(a.view(12, 4, 4), b.view(12, 4, 4), all_times))
""",
        [("losses.py", IN, 1, "diagonal")],
        SITE,
    ),
    **{
        f"COMET, {name}": Member("COMET", COMET.replace("{loss}", call), losses, command)
        for name, call, losses, command in (
            (
                "samples",
                "losses.contrastive_loss(a, b, losses.sample_contrastive_loss, hierarchical=True)",
                [("losses.py", IN, 1, "")],
                SITE,
            ),
            (
                "patients",
                "losses.contrastive_loss(a, b, losses.patient_contrastive_loss, id=patients)",
                [("losses.py", UNKNOWN, 0, "")],
                "",
            ),
            (
                "all four",
                "(losses.contrastive_loss(a, b, losses.patient_contrastive_loss, id=patients)"
                " + losses.contrastive_loss(a, b, losses.trial_contrastive_loss, id=trials)"
                " + losses.contrastive_loss(a, b, losses.sample_contrastive_loss, hierarchical=True)"
                " + losses.contrastive_loss(a, b, losses.observation_contrastive_loss, hierarchical=True)) / 4",
                [("losses.py", IN, 1, "")] * 2,
                "",
            ),
        )
    },
    "BLEEP": Member(
        "BLEEP",
        """
absent("timm", "torchvision", "torchvision.models")
models = load("models.py", "bleep_models")


class Own(models.CLIPModel):
    def __init__(self):
        nn.Module.__init__(self)
        self.image_encoder, self.temperature = nn.Identity(), 1.0
        self.image_projection, self.spot_projection = nn.Linear(16, 8), nn.Linear(16, 8)


model = Own()
train(lambda a, b: model({"image": a, "reduced_expression": b}), modules=[model])
""",
        [("models.py", IN, 1, "soft targets")],  # which have a gradient
    ),
    "pylate": Member("pylate", PYLATE, [("contrastive.py", IN, 0, "diagonal")], SITE),
    "TANGLE": Member(
        "TANGLE",
        """
criterion = load("core/loss/tangle_loss.py", "tangle_loss").InfoNCE(temperature=0.02)
train(lambda a, b: criterion(query=a, positive_key=b, symmetric=True))
""",
        [("tangle_loss.py", IN, 50, "diagonal")] * 2,
        SITE,
    ),
    **{
        f"RLMRec, {name}": Member(
            "RLMRec",
            f"""
losses = load("encoder/models/loss_utils.py", "rlmrec_losses")
train(lambda a, b: losses.cal_bpr_loss(a, b, b.roll(1, 0)) / 12 + 0.1 * {call})
""",
            [("loss_utils.py", IN, 5, "")],
            command,
        )
        for name, call, command in (
            (
                "InfoNCE",
                "(losses.cal_infonce_loss(a, b, b, 0.2) + losses.cal_infonce_loss(b, a, a, 0.2)) / 12",
                "inject",
            ),
            ("profiles", "losses.ssl_con_loss(a, b, 0.2)", "--as"),
        )
    },
    "satclip": Member(
        "satclip",
        """
criterion, scale = load("satclip/loss.py", "satclip_loss").SatCLIPLoss(), learned(2.6593)


def loss(a, b):
    logits = scale.logit_scale.exp() * norm(a) @ norm(b).t()
    return criterion(logits, logits.t())


train(loss, modules=[scale])
""",
        [("loss.py", IN, 14.287, "diagonal")] * 2,
        SITE,
    ),
    **{
        f"DualCL, {name}": Member(
            "Dual-Contrastive-Learning",
            DUAL.replace("{name}", name).replace("{width}", width).replace("{classes}", classes),
            losses,
            command,
        )
        for name, width, classes, losses, command in (
            (
                "DualLoss",
                "3 * 16",
                """features = head(b).view(12, 3, 16)
    classes = torch.einsum("bd,bcd->bc", a, features)""",
                [("loss_func.py", IN, 1, "")],  # beside two that it does not find
                "",
            ),
            ("SupConLoss", "3", "features, classes = None, head(a)", [("loss_func.py", UNKNOWN, 0, "")], ""),
        )
    },
}
