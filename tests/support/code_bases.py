"""Further members of the test bed: code bases that were first tried when the finder was already written.

Each has the arguments of ``testbed.Member``, of which the module's docstring says what they are.
"""

from __future__ import annotations

from typing import Any

IN = "infonce"
SITE, REPLACE, PYG = "--site", "--replace", "inject pyg"

CLAP = """
import importlib.util

path = os.path.join(CLONE, "src/laion_clap/clap_module/loss.py")
spec = importlib.util.spec_from_file_location("clap_loss", path)
module = sys.modules["clap_loss"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
net = nn.Module()
net.logit_scale, net.logit_scale_t = nn.Parameter(torch.tensor(2.6593)), nn.Parameter(torch.tensor(2.2))
net.a, net.t = nn.Linear(16, 16), nn.Linear(16, 16)
"""
DPR = """
for name in ("dpr", "dpr.models", "dpr.data", "dpr.utils"):
    package(name, name.replace(".", "/"))
stub("dpr.data.biencoder_data", BiEncoderSample=object)
stub("dpr.utils.data_utils", Tensorizer=object)
stub("dpr.utils.model_utils", CheckpointState=object)
from dpr.models.biencoder import BiEncoderNllLoss

criterion = BiEncoderNllLoss()
train(lambda a, b: criterion.calc(a[:6], b, list(range(0, 12, 2)), [[i + 1] for i in range(0, 12, 2)])[0])
"""
CONTRIEVER = """
stub("src").__path__ = [CLONE + "/src"]
sys.modules["src"].contriever, sys.modules["src"].utils = stub("src.contriever"), stub("src.utils")
torch.Tensor.cuda = lambda self: self


class Encoder(nn.Module):
    def forward(self, input_ids, attention_mask, normalize):
        return norm(input_ids)
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
CACHED = """
sys.path.insert(0, CLONE + "/src")
from grad_cache import GradCache
from grad_cache.loss import SimpleContrastiveLoss

torch.manual_seed(0)
q, p = nn.Linear(10, 16), nn.Linear(10, 16)
optimizer = torch.optim.SGD([*q.parameters(), *p.parameters()], lr=0.05)
loss_fn = SimpleContrastiveLoss(n_hard_negatives=1)
cache = GradCache(models=[q, p], chunk_sizes=4, loss_fn=loss_fn, get_rep_fn=lambda v: v)
for _ in range(6):
    optimizer.zero_grad()
    cache(torch.randn(8, 10), torch.randn(16, 10))
    optimizer.step()
"""

MEMBERS: dict[str, dict[str, Any]] = {
    "transformers SiglipModel": {
        "folder": "",
        "code": SIGLIP,
        "losses": [("modeling_siglip.py", "siglip", 9.974, "diagonal")],
        "command": "--positives diagonal",
        "needs": ("transformers.modeling_utils",),
    },
    "CLAP": {
        "folder": "CLAP",
        "code": CLAP + "loss = module.ClipLoss()\n"
        "train(lambda a, b: loss(norm(a), norm(b), net.logit_scale.exp()), modules=[net])\n",
        "losses": [("loss.py", IN, 14.287, "diagonal")] * 2,
        "command": SITE,
    },
    "CLAP, four directions": {
        "folder": "CLAP",
        "code": CLAP + "loss = module.ClipLoss(mlp_loss=True)\n"
        "train(lambda a, b: loss(norm(a), norm(b), net.logit_scale.exp(), net.logit_scale_t.exp(), norm(net.a(a)), "
        "norm(net.t(b))), modules=[net])\n",
        "losses": [("loss.py", IN, 14.287, "diagonal")] * 2 + [("loss.py", IN, 9.025, "diagonal")] * 2,
        "command": SITE,
    },
    "Contrastive-Clustering": {
        "folder": "Contrastive-Clustering",
        "code": """
from modules.contrastive_loss import ClusterLoss, InstanceLoss

instances, clusters = InstanceLoss(12, 0.5, "cpu"), ClusterLoss(16, 1.0, "cpu")
train(lambda a, b: instances(norm(a), norm(b)) + clusters(a.softmax(1), b.softmax(1)))
""",
        "losses": [("contrastive_loss.py", IN, 2, "column 0"), ("contrastive_loss.py", IN, 1, "column 0")],
        "command": SITE,
    },
    "SELFRec InfoNCE": {
        "folder": "SELFRec",
        "code": """
from util.loss_torch import InfoNCE, bpr_loss

train(lambda a, b: bpr_loss(a, b, b.roll(1, 0)) + 0.2 * (InfoNCE(a, b, 0.2) + InfoNCE(b, a, 0.2)))
""",
        "losses": [("loss_torch.py", IN, 5, "diagonal")],
        "command": REPLACE,
    },
    "SELFRec batch softmax": {
        "folder": "SELFRec",
        "code": """
from util.loss_torch import batch_softmax_loss

train(lambda a, b: batch_softmax_loss(a, b, 0.2))
""",
        "losses": [("loss_torch.py", IN, 5, "diagonal")],
    },
    "GCA": {
        "folder": "GCA",
        "code": """
from pGRACE.model import GRACE

model = GRACE(nn.Module(), 16, 16, 0.4)
train(lambda a, b: model.loss(a, b), modules=[model])
""",
        "losses": [("model.py", IN, 2.5, "")],
        "command": PYG,
        "needs": ("torch_geometric",),
    },
    "HeCo": {
        "folder": "HeCo",
        "code": """
sys.path.insert(0, CLONE + "/code")
from module.contrast import Contrast

contrast, groups = Contrast(16, 0.8, 0.5), torch.arange(12) % 6
train(lambda a, b: contrast(a, b, (groups[:, None] == groups).float().to_sparse()), modules=[contrast])
""",
        "losses": [("contrast.py", "nca", 1.25, "")],
        "command": REPLACE,
    },
    "TS-TCC": {
        "folder": "TS-TCC",
        "code": """
package("models", "models")
from models.loss import NTXentLoss

criterion = NTXentLoss("cpu", 12, 0.2, False)
train(lambda a, b: criterion(norm(a), norm(b)))
""",
        "losses": [("loss.py", IN, 5, "column 0")],
        "command": SITE,
    },
    "ts2vec": {
        "folder": "ts2vec",
        "code": """
from models.losses import hierarchical_contrastive_loss

times = nn.Linear(16, 16 * 4)
train(lambda a, b: hierarchical_contrastive_loss(*(times(z).view(12, 4, 16) for z in (a, b))), modules=[times])
""",
        "losses": [("losses.py", IN, 1, "mask")] * 2,
    },
    "SCAN": {
        "folder": "Unsupervised-Classification",
        "code": """
torch.Tensor.cuda = lambda self: self
from losses.losses import SimCLRLoss

criterion = SimCLRLoss(0.1)
train(lambda a, b: criterion(torch.stack([norm(a), norm(b)], 1)))
""",
        "losses": [("losses.py", IN, 10, "diagonal")],
        "command": REPLACE,
    },
    "CMC": {
        "folder": "CMC",
        "code": """
torch.Tensor.cuda = lambda self, *args: self
import NCE.alias_multinomial

NCE.alias_multinomial.AliasMethod.cuda = lambda self: None
from NCE.NCEAverage import NCEAverage
from NCE.NCECriterion import NCESoftmaxLoss

memory, criterion = NCEAverage(16, 100, 20, 0.07, 0.5, True), NCESoftmaxLoss()
train(lambda a, b: sum(map(criterion, memory(norm(a), norm(b), torch.arange(12)))))
""",
        "losses": [("NCECriterion.py", IN, 14.286, "column 0")],
        "command": SITE,
    },
    "GradCache": {
        "folder": "GradCache",
        "code": CACHED,
        "losses": [("loss.py", IN, 1, "2th column")],
        "command": SITE,
    },
    "DPR": {
        "folder": "DPR",
        "code": DPR,
        "losses": [("biencoder.py", IN, 1, "2th column")],
        "command": SITE,
    },
    "Contriever, in batch": {
        "folder": "contriever",
        "code": CONTRIEVER
        + """
from src.inbatch import InBatch


class Own(InBatch):
    def __init__(self):
        nn.Module.__init__(self)
        self.opt, self.encoder = types.SimpleNamespace(temperature=0.05), Encoder()
        self.norm_query, self.norm_doc, self.label_smoothing = True, True, 0.0


model = Own()
train(lambda a, b: model(a, None, b, None)[0])
""",
        "losses": [("inbatch.py", IN, 20, "diagonal")],
        "command": SITE,
        "needs": ("transformers.modeling_utils",),
    },
    "Contriever, MoCo": {
        "folder": "contriever",
        "code": CONTRIEVER
        + """
from src.moco import MoCo


class Own(MoCo):
    def __init__(self):
        nn.Module.__init__(self)
        self.temperature, self.momentum, self.queue_size, self.moco_train_mode_encoder_k = 0.05, 0.9, 24, True
        self.norm_query, self.norm_doc, self.label_smoothing = True, True, 0.0
        self.encoder_q, self.encoder_k = Encoder(), Encoder()
        self.register_buffer("queue", norm(torch.randn(24, 16)).T.contiguous())
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))


model = Own()
train(lambda a, b: model(a, None, b, None)[0])
""",
        "losses": [("moco.py", IN, 20, "column 0")],
        "command": SITE,
        "needs": ("transformers.modeling_utils",),
    },
}
