"""Code bases that nobody had in mind when the finder was written, tried with their own loss in a toy encoder."""

from __future__ import annotations

from bed import IN, OUT, UNKNOWN, Member

ANY = "inject"  # any road

ALBEF = """
package("models", "models")
stub("models.vit", VisionTransformer=object)
stub("models.xbert", BertConfig=object, BertModel=object)
ALPHA = 0.0
model_file = load("models/model_retrieval.py", "model_retrieval")
model_file.concat_all_gather = lambda x: x


class Tokens(nn.Module):
    def forward(self, x=None, encoder_embeds=None, encoder_hidden_states=None, **_):
        x = (x if encoder_embeds is None else encoder_embeds + encoder_hidden_states).float()
        return types.SimpleNamespace(last_hidden_state=x)


class Own(model_file.ALBEF):
    def __init__(self):
        nn.Module.__init__(self)
        self.distill, self.queue_size, self.momentum = True, 24, 0.9
        self.visual_encoder, self.visual_encoder_m = nn.Identity(), nn.Identity()
        self.text_encoder, self.text_encoder_m = Tokens(), Tokens()
        self.vision_proj, self.vision_proj_m = nn.Linear(16, 16), nn.Linear(16, 16)
        self.text_proj, self.text_proj_m = nn.Linear(16, 16), nn.Linear(16, 16)
        self.temp, self.itm_head = nn.Parameter(torch.ones([]) * 0.07), nn.Linear(16, 2)
        self.model_pairs = [[self.vision_proj, self.vision_proj_m], [self.text_proj, self.text_proj_m]]
        self.copy_params()
        self.register_buffer("image_queue", norm(torch.randn(24, 16)).T.contiguous())
        self.register_buffer("text_queue", norm(torch.randn(24, 16)).T.contiguous())
        self.register_buffer("idx_queue", torch.full((1, 24), -100))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))


model, step = Own(), 0


def loss(a, b):
    global step
    step += 1
    text = types.SimpleNamespace(input_ids=b.unsqueeze(1), attention_mask=torch.ones(len(b), 1))
    return sum(model(a.unsqueeze(1), text, ALPHA * min(1.0, (step - 1) / 5), torch.arange(12) + 12 * step))


train(loss, modules=[model])
"""

CLOOB = """
methods, model = load("src/training/methods.py", "cloob_methods"), learned(2.66)


class Hopfield:
    def forward(self, x):
        stored, state, _ = x
        return torch.softmax(8 * state @ stored.transpose(1, 2), -1) @ stored


train(lambda a, b: methods.cloob(norm(a), norm(b), {scale}, Hopfield()), modules=[model])
"""

COLPALI = """
package("colpali_engine", "colpali_engine")
from colpali_engine.loss import *
from colpali_engine.loss import bi_encoder_losses, late_interaction_losses

words = nn.Linear(16, 16 * 5)
tokens = lambda z: norm(words(z).view(len(z), 5, 16))
"""

SWIFT = """
package("swift", "swift"), package("swift.loss", "swift/loss")
stub("swift.sequence_parallel", sequence_parallel=None)
stub("swift.utils", get_dist_setting=lambda: (0, 0, 1, 1))
import transformers.utils
transformers.utils.strtobool = lambda text: text == "True"
stub("swift.trainers"), stub("swift.loss.base", BaseLoss=type("BaseLoss", (), {"is_megatron": False}))
from swift.loss.embedding import InfonceLoss

criterion = InfonceLoss()


def grouped(a, b, sizes):
    z, at, rows, labels = norm(torch.cat([a, b])), 0, [], []
    for i, size in enumerate(sizes):
        rows += [z[at : at + size + 1]]
        labels += [1] + [0] * (size - 1)
        at += size + 1
    return {"last_hidden_state": torch.cat(rows)}, torch.tensor(labels)


"""

MEMBERS = {
    "CLIP4Clip": Member(
        "CLIP4Clip",
        """
package("modules", "modules"), absent("modules.until_config")
sys.modules["modules.until_config"].PretrainedConfig = object
from modules.until_module import CrossEn

scale, criterion = learned(2.6593), CrossEn()


def loss(a, b):
    sim_matrix = scale.logit_scale.exp() * torch.matmul(norm(a), norm(b).t())
    return (criterion(sim_matrix) + criterion(sim_matrix.T)) / 2


train(loss, modules=[scale])
""",
        [("until_module.py", IN, 14.287, "diagonal")],
        ANY,
    ),
    "CUT PatchNCE": Member(
        "CUT",
        """
criterion = load("models/patchnce.py", "patchnce").PatchNCELoss(
    types.SimpleNamespace(nce_includes_all_negatives_from_minibatch=False, batch_size=3, nce_T=0.07)
)
train(lambda a, b: criterion(norm(a), norm(b)).mean())
""",
        [("patchnce.py", IN, 14.286, "column 0")],
        ANY,
    ),
    **{
        f"CEBRA {name}": Member(
            "CEBRA",
            f"""
criterions = load("cebra/models/criterions.py", "cebra_criterions")
criterion = criterions.{call}
train(lambda a, b: criterion(norm(a[:6]), norm(b[:6]), norm(a[6:]))[0], modules=[criterion])
""",
            [("criterions.py", form, scale, "")],
            ANY if command else "",
        )
        for name, call, form, scale, command in (
            ("fixed cosine", "FixedCosineInfoNCE(0.1)", OUT, 10, True),
            ("learnable cosine", "LearnableCosineInfoNCE(0.1)", OUT, 10, False),
            ("fixed euclidean", "FixedEuclideanInfoNCE(1.0)", UNKNOWN, 0, False),
        )
    },
    "CoSeRec": Member(
        "CoSeRec",
        """
criterion = load("src/modules.py", "coserec_modules").NCELoss(1.0, "cpu")
train(criterion)
""",
        [("modules.py", IN, 1, "diagonal")],
        ANY,
    ),
    "ALBEF": Member(
        "ALBEF",
        ALBEF,
        [("model_retrieval.py", IN, 14.286, "diagonal")] * 2,
        ANY,
        needs=("transformers.modeling_utils",),
    ),
    "ALBEF, targets that ramp in": Member(
        "ALBEF",
        ALBEF.replace("ALPHA = 0.0", "ALPHA = 0.4"),
        [("model_retrieval.py", IN, 14.286, f"soft targets sim_{way}_targets") for way in ("i2t", "t2i")],
        ANY,
        needs=("transformers.modeling_utils",),
    ),
    "x-clip": Member(
        "x-clip",
        """
from x_clip import CLIP


class Toy(nn.Module):
    def forward(self, x, *_):
        return self.layer(x.float())

    def __init__(self, wide):
        super().__init__()
        self.layer = nn.Linear(wide, 16)


torch.manual_seed(0)
model = CLIP(dim_text=16, dim_image=16, dim_latent=16, text_encoder=Toy(10), image_encoder=Toy(10),
             text_encode_without_mask=True, num_text_tokens=50)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(6):
    loss = model(torch.randint(1, 50, (12, 10)), torch.randn(12, 10), return_loss=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        [("x_clip.py", IN, 2.718, "diagonal")],
        ANY,
        needs=("einops",),
    ),
    "CoST": Member(
        "CoST",
        """
torch.Tensor.cuda = lambda self: self
package("models", "models"), absent("tasks")
stub("utils", take_per_row=None, split_with_nan=None, centerize_vary_length_series=None, torch_pad_nan=None)
from cost import CoSTModel


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 16), nn.Linear(3, 16)

    def forward(self, x):
        return self.a(x), self.b(x)


import copy
import numpy as np

torch.manual_seed(0), np.random.seed(0)
net = Toy()
model = CoSTModel(net, copy.deepcopy(net), kernels=[], dim=16, alpha=0.05, K=24, device="cpu")
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-2)
for _ in range(6):
    loss = model(torch.randn(12, 7, 3), torch.randn(12, 7, 3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        [("cost.py", IN, 14.286, "column 0"), ("cost.py", IN, 1, "")],
        ANY,
        needs=("einops",),
    ),
    **{
        f"colpali {name}": Member("colpali", COLPALI + f"train({call}, modules=[words])\n", losses, command)
        for name, call, losses, command in (
            (
                "BiEncoderLoss",
                "lambda a, b: bi_encoder_losses.BiEncoderLoss()(norm(a), norm(b))",
                [("bi_encoder_losses.py", IN, 50, "diagonal")],
                ANY,
            ),
            (
                "BiNegativeCELoss",
                "lambda a, b: bi_encoder_losses.BiNegativeCELoss(in_batch_term_weight=0.5)(norm(a), norm(b), "
                "norm(torch.stack([b.roll(1, 0), a.roll(2, 0)], 1)))",
                [("bi_encoder_losses.py", IN, 50, "diagonal"), ("bi_encoder_losses.py", "binary", 0, "")],
                "",
            ),
            (
                "ColbertLoss",
                "lambda a, b: late_interaction_losses.ColbertLoss()(tokens(a), tokens(b))",
                [("late_interaction_losses.py", IN, 1, "diagonal")],
                ANY,
            ),
            (
                "ColbertLoss, filtered",
                "lambda a, b: late_interaction_losses.ColbertLoss(pos_aware_negative_filtering=True)"
                "(tokens(a), tokens(b))",
                [("late_interaction_losses.py", IN, 1, "diagonal")],
                ANY,
            ),
        )
    },
    "ColBERT": Member(
        "ColBERT",
        """
for name in ("colbert", "colbert.modeling"):
    package(name, name.replace(".", "/"))
absent("colbert.infra.config.config", "colbert.infra", "colbert.infra.config", "colbert.search")
absent("colbert.search.strided_tensor")
stub("colbert.utils"), stub("colbert.utils.utils", print_message=print, flatten=lambda x: [z for y in x for z in y])
stub("colbert.modeling.base_colbert", BaseColBERT=nn.Module), stub("colbert.parameters", DEVICE="cpu")
from colbert.modeling.colbert import ColBERT, colbert_score_reduce

torch.nn.CrossEntropyLoss  # as in its training loop
config = types.SimpleNamespace(nway=2, interaction="colbert", total_visible_gpus=0, similarity="cosine")
model = ColBERT.__new__(ColBERT)
nn.Module.__init__(model)
model.colbert_config = config
words = nn.Linear(16, 16 * 5)
tokens = lambda z: norm(words(z).view(len(z), 5, 16))
train(lambda a, b: model.compute_ib_loss(tokens(a[:6]), tokens(b), torch.ones(12, 5, 1).bool()), modules=[words])
""",
        [("colbert.py", IN, 1, "")],
        ANY,
    ),
    "GLoRIA": Member(
        "gloria",
        """
losses = load("gloria/loss/gloria_loss.py", "gloria_loss")
train(lambda a, b: sum(losses.global_loss(a, b)))
""",
        [("gloria_loss.py", IN, 10, "diagonal")] * 2,
        ANY,
    ),
    "GLoRIA, both losses": Member(
        "gloria",
        """
losses = load("gloria/loss/gloria_loss.py", "gloria_loss")
image, text = nn.Linear(16, 16 * 4), nn.Linear(16, 16 * 5)


def loss(a, b):
    pixels, words = image(a).view(-1, 16, 2, 2), text(b).view(-1, 16, 5)
    return sum(losses.global_loss(a, b)) + sum(losses.local_loss(pixels, words, [3 + i % 3 for i in range(12)])[:2])


train(loss, modules=[image, text])
""",
        [("gloria_loss.py", IN, 0, "diagonal")] * 4,
        ANY,
    ),
    "ULIP": Member(
        "ULIP",
        """
package("utils", "utils"), stub("utils.utils", get_rank=lambda: 0, all_gather_batch=lambda x: x)
sys.modules["utils"].utils = sys.modules["utils.utils"]
criterion = load("models/losses.py", "ulip_losses").ULIPWithImageLoss()
scale = learned(2.6593)


def loss(a, b):
    text = (b + 1).detach()
    embeds = {"pc_embed": a, "text_embed": text, "image_embed": b.detach(), "logit_scale": scale.logit_scale.exp()}
    return criterion(embeds)["loss"]


train(loss, modules=[scale])
""",
        [("losses.py", IN, 14.287, "diagonal")] * 4,
        ANY,
    ),
    **{
        f"HCL {name}": Member(
            "HCL",
            f"""
absent("utils", "cv2", "model")
main = load("image/main.py", "hcl_main")
main.temperature = 0.5
train(lambda a, b: main.criterion(norm(a), norm(b), 0.1, len(a), 1.0, "{name}"))
""",
            [("main.py", form, 2, "")],
            ANY,
            needs=("pandas",),
        )
        for name, form in (("hard", "hcl"), ("easy", IN))
    },
    **{
        f"uniem {name}": Member(
            "uniem",
            f"""
losses = load("uniem/criteria.py", "uniem_criteria")
criterion = losses.{name}
train(lambda a, b: criterion({args}))
""",
            losses,
            command,
        )
        for name, args, losses, command in (
            ("PairInBatchNegCoSentLoss()", "a, b", [("criteria.py", IN, 20, "diagonal")], ANY),
            ("PairInBatchNegSoftmaxContrastLoss()", "a, b", [("criteria.py", IN, 20, "diagonal")], ANY),
            ("TripletInBatchNegCoSentLoss()", "a[:6], b[:6], a[6:]", [("criteria.py", IN, 20, "product")], ANY),
            (
                "TripletInBatchNegSoftmaxContrastLoss(add_swap_loss=True)",
                "a[:6], b[:6], a[6:]",
                [("criteria.py", IN, 20, "column 0"), ("criteria.py", IN, 20, "diagonal")],
                ANY,
            ),
            ("PairInBatchNegSigmoidContrastLoss()", "a, b", [("criteria.py", "", 0, "")], ""),
        )
    },
    "PaCo": Member(
        "PaCo",
        """
criterion = load("GPaCo/LT/losses.py", "paco_losses").PaCoLoss(
    alpha=0.05, beta=1.0, gamma=1.0, temperature=0.2, K=12, num_classes=4
)
head, labels = nn.Linear(16, 4), (torch.arange(24) % 4)
train(lambda a, b: criterion(torch.cat([norm(a), norm(b).detach()]), labels, head(a)), modules=[head])
""",
        [("losses.py", UNKNOWN, 0, "")],
        "",
    ),
    "ms-swift, equal groups": Member(
        "ms-swift",
        SWIFT + "train(lambda a, b: criterion(*grouped(a, b, [3] * 6)))\n",
        [("embedding.py", IN, 10, "steps of 3")],
        ANY,
        needs=("accelerate", "transformers.modeling_utils"),
    ),
    "ms-swift, unequal groups": Member(
        "ms-swift",
        SWIFT + "train(lambda a, b: criterion(*grouped(a, b, [2, 3, 4, 3, 2, 4])))\n",
        [("embedding.py", IN, 10, "")],
        ANY,
        needs=("accelerate", "transformers.modeling_utils"),
    ),
    "ms-swift, Qwen3's form": Member(
        "ms-swift",
        SWIFT
        + """
os.environ |= {"INFONCE_INCLUDE_QQ": "True", "INFONCE_INCLUDE_DD": "True", "INFONCE_MASK_FAKE_NEGATIVE": "True"}
train(lambda a, b: criterion(*grouped(a, b, [3] * 6)))
""",
        [("embedding.py", IN, 10, "steps of 3")],
        ANY,
        needs=("accelerate", "transformers.modeling_utils"),
    ),
    "SPLADE in batch": Member(
        "splade",
        """
criterion = load("splade/losses/pairwise.py", "splade_pairwise").InBatchPairwiseNLL()


def loss(a, b):
    a, b = (torch.log1p(torch.relu(z)) for z in (a, b))
    negatives = (a[:6] * b[6:]).sum(1, keepdim=True)
    return criterion({"pos_score": a[:6] @ b[:6].T, "neg_score": negatives})


train(loss)
""",
        [("pairwise.py", IN, 1, "diagonal")],
        ANY,
    ),
    "gritlm": Member(
        "gritlm",
        """
package("gritlm", "gritlm"), package("gritlm.training", "gritlm/training")
stub("transformers.file_utils", ModelOutput=dict)
sys.modules["gritlm"].GritLM = nn.Module
from gritlm.training.model import DistributedContrastiveLoss

criterion = DistributedContrastiveLoss(0.02, False)
train(lambda a, b: criterion(norm(a[:6]), norm(b)))
""",
        [("model.py", IN, 50, "steps of 2")],
        ANY,
        needs=("transformers.modeling_utils",),
    ),
    "llm2vec": Member(
        "llm2vec",
        """
package("llm2vec", "llm2vec"), package("llm2vec.loss", "llm2vec/loss")
from llm2vec.loss.HardNegativeNLLLoss import HardNegativeNLLLoss

criterion = HardNegativeNLLLoss()
train(lambda a, b: criterion(a, b, b.roll(1, 0) + a.roll(2, 0)))
""",
        [("HardNegativeNLLLoss.py", IN, 20, "diagonal")],
        ANY,
    ),
    "contrastors": Member(
        "contrastors",
        """
absent("wandb", "contrastors", "contrastors.distributed", "contrastors.rand_state")
losses = load("src/contrastors/loss.py", "contrastors_loss")
losses.dist = types.SimpleNamespace(is_initialized=lambda: False, get_world_size=lambda: 1)
scale = learned(2.6593)
train(lambda a, b: losses.clip_loss(norm(a), norm(b), lambda x: x * scale.logit_scale.exp(), bidirectional=True),
      modules=[scale])
""",
        [("loss.py", IN, 14.287, "diagonal")] * 2,
        ANY,
        needs=("pandas",),
    ),
    "RecBole-GNN SimGCL": Member(
        "RecBole-GNN",
        """
absent("recbole_gnn.model.general_recommender", "recbole_gnn", "recbole_gnn.model")
sys.modules["recbole_gnn.model.general_recommender"].LightGCN = nn.Module
SimGCL = load("recbole_gnn/model/general_recommender/simgcl.py", "simgcl").SimGCL
model = types.SimpleNamespace(temperature=0.2)
train(lambda a, b: 0.1 * SimGCL.calculate_cl_loss(model, a, b))
""",
        [("simgcl.py", IN, 5, "")],
        ANY,
    ),
    "RecBole-GNN SGL": Member(
        "RecBole-GNN",
        """
absent("recbole", "recbole.model", "recbole.model.init", "recbole.model.loss", "recbole.utils", "recbole_gnn")
absent("recbole_gnn.model", "recbole_gnn.model.layers", "recbole_gnn.model.abstract_recommender")
sys.modules["recbole_gnn.model.abstract_recommender"].GeneralGraphRecommender = nn.Module
SGL = load("recbole_gnn/model/general_recommender/sgl.py", "sgl").SGL
model = types.SimpleNamespace(ssl_tau=0.2, ssl_weight=0.1)


def loss(a, b):
    users, items = torch.randint(6, (2, 8))
    return SGL.calc_ssl_loss(model, users, items, a[:6], b[:6], a[6:], b[6:])


train(loss)
""",
        [("sgl.py", IN, 5, "one key")] * 2,
        ANY,
        needs=("torch_geometric",),
    ),
    "CrossPoint": Member(
        "",
        """
from lightly.loss.ntx_ent_loss import NTXentLoss

criterion, image = NTXentLoss(temperature=0.1), nn.Linear(10, 16)
train(lambda a, b: criterion(a, b) + criterion((a + b) / 2, image(torch.randn(12, 10))), modules=[image])
""",
        [("ntx_ent_loss.py", IN, 10, "")],
        "inject lightly",
        needs=("lightly",),
    ),
    "CLOOB": Member("cloob", CLOOB.replace("{scale}", "14.3"), [("methods.py", OUT, 14.3, "")], ANY),  # two calls
    "CLOOB, learned scale": Member(  # which is a factor of the loss, too
        "cloob", CLOOB.replace("{scale}", "model.logit_scale.exp()"), [("methods.py", OUT, 14.296, "")]
    ),
    "ContrastiveSeg": Member(
        "ContrastiveSeg",
        """
torch.Tensor.cuda = lambda self, *args: self
absent("lib", "lib.loss", "lib.loss.loss_helper", "lib.utils", "lib.utils.tools", "lib.utils.tools.logger")
PixelContrastLoss = load("lib/loss/loss_contrast.py", "loss_contrast").PixelContrastLoss
model = types.SimpleNamespace(temperature=0.1, base_temperature=0.07)
train(lambda a, b: PixelContrastLoss._contrastive(model, torch.stack([norm(a), norm(b)], 1), torch.arange(12) % 4))
""",
        [("loss_contrast.py", IN, 10, "labels_")],
        "inject function",
    ),
    "CAV-MAE": Member(
        "cav-mae",
        """
absent("timm.models.layers")
package("models", "src/models"), stub("models.pos_embed", get_2d_sincos_pos_embed=None)
CAVMAE = load("src/models/cav_mae.py", "models.cav_mae").CAVMAE
train(lambda a, b: 0.01 * CAVMAE.forward_contrastive(None, a, b)[0])
""",
        [("cav_mae.py", IN, 20, "diagonal")],
        ANY,
        needs=("timm",),
    ),
    "ConVIRT": Member(
        "ConVIRT",
        """
criterion = load("loss/nt_xent.py", "convirt_nt_xent").NTXentLoss("cpu", 12, 0.1, True, 0.75)
train(criterion)
""",
        [("nt_xent.py", IN, 10, "diagonal")],  # of both directions
        ANY,
    ),
    "hyp_metric": Member(
        "hyp_metric",
        """
torch.Tensor.cuda = lambda self, *args: self
stub("apex", amp=None), stub("apex.parallel", DistributedDataParallel=None), absent("wandb", "sampler", "helpers")
absent("proxy_anchor", "proxy_anchor.dataset", "proxy_anchor.dataset.Inshop", "model", "hyptorch", "hyptorch.pmath")
stub("tap", Tap=object)
losses = load("train.py", "hyp_train")
train(lambda a, b: losses.contrastive_loss(norm(a), norm(b), 0.2, 0)[0])
""",
        [("train.py", IN, 5, "diagonal")],
        ANY,
    ),
    "GraphMVP": Member(
        "GraphMVP",
        """
absent("networkx", "rdkit", "rdkit.Chem", "datasets")
losses = load("src_classification/util.py", "graphmvp_util")
args = types.SimpleNamespace(normalize=True, CL_similarity_metric="InfoNCE_dot_prod", T=0.1)
train(lambda a, b: losses.dual_CL(a, b, args)[0])
""",
        [("util.py", IN, 10, "diagonal")],
        ANY,
    ),
    "MolCLR": Member(
        "MolCLR",
        """
criterion = load("utils/nt_xent.py", "molclr_nt_xent").NTXentLoss("cpu", 12, 0.1, True)
train(criterion)
""",
        [("nt_xent.py", IN, 10, "column 0")],
        ANY,
    ),
    "ST-DIM": Member(
        "atari-representation-learning",
        """
absent("atariari", "atariari.methods", "atariari.methods.utils", "atariari.methods.trainer", "wandb")
absent("atariari.utils", "atariari.benchmark", "atariari.benchmark.utils")
package("methods", "atariari/methods"), absent("methods.utils")
stub("methods.trainer", Trainer=object)
Trainer = load("atariari/methods/stdim.py", "methods.stdim").InfoNCESpatioTemporalTrainer


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(10, 16), nn.Linear(10, 4 * 16)

    def forward(self, x, fmaps):
        return {"out": self.a(x), "f5": self.b(x).view(-1, 2, 2, 16)}


torch.manual_seed(0)
trainer = Trainer.__new__(Trainer)
trainer.encoder, trainer.classifier1, trainer.classifier2 = Toy(), nn.Linear(16, 16), nn.Linear(16, 16)
trainer.device, trainer.log_results, trainer.batch_size = "cpu", lambda *_, **__: None, 12
trainer.optimizer = torch.optim.SGD([p for m in (trainer.encoder, trainer.classifier1) for p in m.parameters()], 0.01)
trainer.generate_batch = lambda _: ((torch.randn(12, 10), torch.randn(12, 10)) for _ in range(6))
trainer.do_one_epoch(0, None)
""",
        [("stdim.py", IN, 1, "diagonal")] * 2,
        ANY,
        needs=("torchvision",),
    ),
    "pytorch-scarf": Member(
        "pytorch-scarf",
        """
criterion = load("scarf/loss.py", "scarf_loss").NTXent(0.5)
train(criterion)
""",
        [("loss.py", IN, 2, "half a batch")],
        ANY,
    ),
    "byol-pytorch": Member(
        "byol-pytorch",
        """
losses = load("byol_pytorch/byol_pytorch.py", "byol_pytorch")
net = nn.Sequential(nn.Flatten(), nn.Linear(192, 16))
learner = losses.BYOL(net, image_size=8, hidden_layer=-1, projection_size=16, projection_hidden_size=16)
optimizer = torch.optim.Adam(learner.parameters(), 1e-3)
for _ in range(6):
    optimizer.zero_grad()
    learner(torch.randn(12, 3, 8, 8)).backward()
    optimizer.step()
""",
        [],
        needs=("torchvision", "einops"),
    ),
    "Barlow Twins": Member(
        "barlowtwins",
        """
sys.argv = ["main.py", "data"]
main = load("main.py", "barlow_main")
torch.distributed.all_reduce = lambda x: x
model = main.BarlowTwins.__new__(main.BarlowTwins)
nn.Module.__init__(model)
model.args = types.SimpleNamespace(batch_size=12, lambd=0.005)
model.projector, model.backbone, model.bn = nn.Identity(), nn.Identity(), nn.BatchNorm1d(16, affine=False)
train(model)
""",
        [],
        needs=("torchvision",),
    ),
    **{
        f"Decoupled-Contrastive-Learning {name}": Member(
            "Decoupled-Contrastive-Learning",
            f"""
losses = load("loss/dcl.py", "dcl")
criterion = losses.{name}
train(lambda a, b: criterion(norm(a), norm(b)) + criterion(norm(b), norm(a)))
""",
            losses,
            command,
        )
        for name, losses, command in (
            ("DCL()", [("dcl.py", OUT, 10, "")], ANY),
            ("DCLW()", [("dcl.py", UNKNOWN, 0, "")], ""),
        )
    },
    "chingyaoc/DCL": Member(
        "DCL",
        """
torch.Tensor.cuda = lambda self, *args, **_: self
absent("utils", "model")
main = load("main.py", "dcl_main")
main.batch_size, main.epoch, main.epochs, main.tqdm = 12, 1, 1, lambda x: x
main.tqdm = type("Bar", (list,), {"set_description": lambda *_: None})
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16))
encode = nn.Module()
encode.net, encode.forward = net, lambda x: (None, norm(net(x)))
data = [(torch.randn(12, 10), torch.randn(12, 10), None) for _ in range(6)]
main.train(encode, data, torch.optim.SGD(net.parameters(), 0.01), 0.5, True, 0.1)
""",
        [("main.py", "dcl", 2, "")],
        ANY,
    ),
    # five that nobody had opened before, as they came out
    **{
        f"info-nce-pytorch {name}": Member(
            "info-nce-pytorch",
            f"""
from info_nce import InfoNCE

train(lambda a, b: {call})
""",
            [("__init__.py", IN, 10, positives)],
            ANY,
        )
        for name, call, positives in (
            ("in batch", "InfoNCE()(a, b)", "diagonal"),
            ("unpaired", "InfoNCE()(a[:6], b[:6], a[6:])", "column 0"),
            ("paired", "InfoNCE(negative_mode='paired')(a[:6], b[:6], torch.stack([a[6:], b[6:]], 1))", "column 0"),
        )
    },
    "SCCL": Member(
        "sccl",
        """
criterion = load("learner/contrastive_utils.py", "sccl_contrastive").PairConLoss(0.5)
train(lambda a, b: criterion(norm(a), norm(b))["loss"])
""",
        [("contrastive_utils.py", IN, 2, "")],
        ANY,
    ),
    **{
        f"SSLRec {name}": Member(
            "SSLRec",
            f"""
losses = load("models/loss_utils.py", "sslrec_losses")
train(lambda a, b: losses.{call})
""",
            [("loss_utils.py", form, 5, "")],
            ANY,
        )
        for name, form, call in (
            ("InfoNCE", IN, "cal_infonce_loss(a[:6], b[:6], torch.cat([b[:6], b[6:]]), 0.2)"),
            ("InfoNCE of nodes", IN, "cal_infonce_loss_spec_nodes(a, b, torch.tensor([2, 3, 5, 7]), 0.2)"),
        )
    },
    "Balanced-Contrastive-Learning": Member(
        "Balanced",
        """
criterion = load("loss/contrastive.py", "balanced_contrastive").BalSCL([5, 4, 3], 0.1)
centers, labels = nn.Linear(16, 3), torch.arange(12) % 3
train(lambda a, b: criterion(norm(centers.weight), torch.stack([norm(a), norm(b)], 1), labels), modules=[centers])
""",
        [("contrastive.py", UNKNOWN, 0, "")],
        "",
    ),
    "Contrastive-Predictive-Coding-PyTorch": Member(
        "cpc",
        """
from src.model.model import CDCK2

draw = torch.randint
torch.randint = lambda high, size: draw(int(high), size)  # which took a float once
torch.manual_seed(0)
model = CDCK2(timestep=3, batch_size=4, seq_len=20480)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(4):
    loss = model(torch.randn(4, 1, 20480), model.init_hidden(4, use_gpu=False))[1]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        [("model.py", IN, 1, "diagonal")],
        ANY,
    ),
}
