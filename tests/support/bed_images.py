"""Images, and images with texts."""

from __future__ import annotations

from bed import CLIP, IN, REPLACE, SITE, Member

# transformers' own model with random weights, of a batch of words and images
CLIP_MODEL = """
import torch
from transformers import CLIPConfig, CLIPModel

text = dict(vocab_size=99, hidden_size=16, intermediate_size=32, num_attention_heads=2, num_hidden_layers=1,
            max_position_embeddings=16, eos_token_id=98, bos_token_id=97, pad_token_id=1)
vision = dict(hidden_size=16, intermediate_size=32, num_attention_heads=2, num_hidden_layers=1, image_size=8,
              patch_size=4)
torch.manual_seed(0)
model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    words, images = torch.randint(2, 97, (6, 7)), torch.randn(6, 3, 8, 8)
    loss = model(input_ids=words, pixel_values=images, return_loss=True).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(float(loss.detach()), float(model.logit_scale.detach()))
"""

SIGLIP = """
import torch
from transformers import SiglipConfig, SiglipModel

text = dict(vocab_size=99, hidden_size=16, intermediate_size=32, num_attention_heads=2, num_hidden_layers=1,
            max_position_embeddings=16, projection_size=16, eos_token_id=98, bos_token_id=97, pad_token_id=1)
vision = dict(hidden_size=16, intermediate_size=32, num_attention_heads=2, num_hidden_layers=1, image_size=8,
              patch_size=4)
torch.manual_seed(0)
model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
with torch.no_grad():
    model.logit_scale.fill_(2.3), model.logit_bias.fill_(-10.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    words, images = torch.randint(2, 97, (6, 7)), torch.randn(6, 3, 8, 8)
    loss = model(input_ids=words, pixel_values=images, return_loss=True).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(float(loss.detach()), float(model.logit_scale.detach()), float(model.logit_bias.detach()))
"""

MEMBERS = {
    "open_clip": Member(
        "open_clip",
        """
package("open_clip", "src/open_clip")
from open_clip.loss import ClipLoss

scale = nn.Module()
scale.logit_scale = nn.Parameter(torch.tensor(2.6593))
criterion = ClipLoss()
train(lambda a, b: criterion(norm(a), norm(b), scale.logit_scale.exp()), modules=[scale])
""",
        [("loss.py", IN, 14.287, "diagonal")] * 2,
        CLIP,
    ),
    "open_clip SigLipLoss": Member(
        "open_clip",
        """
package("open_clip", "src/open_clip")
from open_clip.loss import SigLipLoss

scale = nn.Module()
scale.logit_scale, scale.logit_bias = nn.Parameter(torch.tensor(2.3)), nn.Parameter(torch.tensor(-10.0))
criterion = SigLipLoss()
train(lambda a, b: criterion(norm(a), norm(b), scale.logit_scale.exp(), scale.logit_bias), modules=[scale])
""",
        [("loss.py", "siglip", 9.974, "diagonal")],
        REPLACE,
    ),
    "SLIP CLIPLoss": Member(
        "SLIP",
        """
from losses import CLIPLoss

scale = nn.Module()
scale.logit_scale = nn.Parameter(torch.tensor(2.6593))
criterion = CLIPLoss()
call = lambda a, b: criterion({"image_embed": a, "text_embed": b, "logit_scale": scale.logit_scale.exp()})["loss"]
import utils
utils.all_gather_batch = lambda tensors: tensors
train(call, modules=[scale])
""",
        [("losses.py", IN, 14.287, "diagonal")] * 2,
        CLIP,
    ),
    "SLIP SIMCLRLoss": Member(
        "SLIP",
        """
from losses import SIMCLRLoss
import utils

utils.all_gather_batch_with_grad = lambda tensors: tensors
criterion = SIMCLRLoss()
train(lambda a, b: criterion({"aug1_embed": a, "aug2_embed": b})["loss"])
""",
        [("losses.py", IN, 10, "diagonal")] * 2,
        SITE,
    ),
    "transformers CLIPModel": Member(
        "", CLIP_MODEL, [("modeling_clip.py", IN, 14.285, "diagonal")], CLIP, needs=("transformers.modeling_utils",)
    ),
    "transformers SiglipModel": Member(
        folder="",
        code=SIGLIP,
        losses=[("modeling_siglip.py", "siglip", 9.974, "diagonal")],
        command="--positives diagonal",
        needs=("transformers.modeling_utils",),
    ),
    "moco-v3": Member(
        "moco-v3",
        """
from moco.builder import MoCo

torch.distributed.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
torch.Tensor.cuda = lambda self: self
model = MoCo.__new__(MoCo)
model.T = 0.2
train(lambda a, b: MoCo.contrastive_loss(model, a, b.detach()) + MoCo.contrastive_loss(model, b, a.detach()))
""",
        [("builder.py", IN, 5, "diagonal")],
        SITE,
    ),
    "sthalles/SimCLR": Member(
        "SimCLR-sthalles",
        """
from types import SimpleNamespace as Space

from simclr import SimCLR

args = Space(device="cpu", batch_size=12, n_views=2, temperature=0.07, fp16_precision=False, epochs=1, arch="toy",
             disable_cuda=True, log_every_n_steps=100)
net = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
data = [([torch.randn(12, 3, 4, 4), torch.randn(12, 3, 4, 4)], None) for _ in range(6)]
SimCLR(model=net, optimizer=optimizer, scheduler=scheduler, args=args).train(data)
""",
        [("simclr.py", IN, 1 / 0.07, "column 0")],
        SITE,
        needs=("tensorboard",),
    ),
    "Spijkervet/SimCLR": Member(
        "SimCLR-Spijkervet",
        """
package("simclr", "simclr")
package("simclr.modules", "simclr/modules")
from simclr.modules.nt_xent import NT_Xent

criterion = NT_Xent(12, 0.5, 1)
train(criterion)
""",
        [("nt_xent.py", IN, 2, "column 0")],
        SITE,
    ),
    "SupContrast SimCLR": Member(
        "SupContrast",
        """
from losses import SupConLoss

criterion = SupConLoss()
train(lambda a, b: criterion(torch.stack([norm(a), norm(b)], 1)))
""",
        [("losses.py", IN, 1 / 0.07, "half a batch")],
        REPLACE,
    ),
    "SupContrast SupCon": Member(
        "SupContrast",
        """
from losses import SupConLoss

criterion = SupConLoss(temperature=0.1)
train(lambda a, b: criterion(torch.stack([norm(a), norm(b)], 1), torch.arange(12) % 4))
""",
        [("losses.py", "supcon", 10, "labels")],
        REPLACE,
    ),
    **{
        f"solo-learn {name}": Member(
            "solo-learn",
            f"""
for name in ("solo", "solo.losses", "solo.utils"):
    package(name, name.replace(".", "/"))
stub("solo.utils.misc", gather=lambda x: x, get_rank=lambda: 0, concat_all_gather_no_grad=lambda x: x)
from solo.losses.{name.partition(",")[0]} import {name.partition(",")[0]}_loss_func as loss_func

queue = norm(torch.randn(16, 20).T).T.contiguous()
{call}
""",
            [losses],
            command,
        )
        for name, call, losses, command in (
            ("mocov3", "train(lambda a, b: loss_func(a, b.detach(), 0.2))", ("mocov3.py", IN, 5, "diagonal"), SITE),
            ("nnclr", "train(lambda a, b: loss_func(a.detach(), b, 0.1))", ("nnclr.py", IN, 10, "diagonal"), SITE),
            (
                "mocov2plus",
                "train(lambda a, b: loss_func(norm(a), norm(b).detach(), queue, 0.2))",
                ("mocov2plus.py", IN, 5, "column 0"),
                SITE,
            ),
            (
                "simclr",
                "train(lambda a, b: loss_func(torch.cat([a, b]), torch.arange(12).repeat(2), 0.2))",
                ("simclr.py", IN, 5, "half a batch"),
                REPLACE,
            ),
            (
                "simclr, supervised",
                "train(lambda a, b: loss_func(torch.cat([a, b]), (torch.arange(12) % 4).repeat(2), 0.2))",
                ("simclr.py", "nca:estimator=g0", 5, "indexes"),
                REPLACE,
            ),
        )
    },
    "solo-learn byol": Member(
        "solo-learn",
        """
package("solo", "solo")
package("solo.losses", "solo/losses")
from solo.losses.byol import byol_loss_func

train(lambda a, b: byol_loss_func(a, b.detach()))
""",
        [],
    ),
    "pytorch-metric-learning NTXent": Member(
        "",
        """
from pytorch_metric_learning.losses import NTXentLoss

criterion = NTXentLoss(temperature=0.1)
train(lambda a, b: criterion(torch.cat([a, b]), torch.arange(12).repeat(2)))
""",
        [("ntxent_loss.py", IN, 10, "")],
        "inject function",
        needs=("pytorch_metric_learning",),
    ),
    "pytorch-metric-learning SupCon": Member(
        "",
        """
from pytorch_metric_learning.losses import SupConLoss

criterion = SupConLoss(temperature=0.1)
train(lambda a, b: criterion(torch.cat([a, b]), (torch.arange(12) % 4).repeat(2)))
""",
        [("loss_and_miner_utils.py", "supcon", 10, "labels")],
        REPLACE,
        needs=("pytorch_metric_learning",),
    ),
    "lightly": Member(
        "",
        """
from lightly.loss import NTXentLoss

train(NTXentLoss(temperature=0.5))
""",
        [("ntx_ent_loss.py", IN, 2, "")],
        "inject lightly",
        needs=("lightly",),
    ),
    "Contrastive-Clustering": Member(
        folder="Contrastive-Clustering",
        code="""
from modules.contrastive_loss import ClusterLoss, InstanceLoss

instances, clusters = InstanceLoss(12, 0.5, "cpu"), ClusterLoss(16, 1.0, "cpu")
train(lambda a, b: instances(norm(a), norm(b)) + clusters(a.softmax(1), b.softmax(1)))
""",
        losses=[("contrastive_loss.py", IN, 2, "column 0"), ("contrastive_loss.py", IN, 1, "column 0")],
        command=SITE,
    ),
    "SCAN": Member(
        folder="Unsupervised-Classification",
        code="""
torch.Tensor.cuda = lambda self: self
from losses.losses import SimCLRLoss

criterion = SimCLRLoss(0.1)
train(lambda a, b: criterion(torch.stack([norm(a), norm(b)], 1)))
""",
        losses=[("losses.py", IN, 10, "diagonal")],
        command=REPLACE,
    ),
    "CMC": Member(
        folder="CMC",
        code="""
torch.Tensor.cuda = lambda self, *args: self
import NCE.alias_multinomial

NCE.alias_multinomial.AliasMethod.cuda = lambda self: None
from NCE.NCEAverage import NCEAverage
from NCE.NCECriterion import NCESoftmaxLoss

memory, criterion = NCEAverage(16, 100, 20, 0.07, 0.5, True), NCESoftmaxLoss()
train(lambda a, b: sum(map(criterion, memory(norm(a), norm(b), torch.arange(12)))))
""",
        losses=[("NCECriterion.py", IN, 14.286, "column 0")],
        command=SITE,
    ),
}
