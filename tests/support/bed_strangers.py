"""Graphs, recommenders, series, cells and robots: code bases that nobody here had opened before."""

from __future__ import annotations

from bed import IN, LOOP, OUT, UNKNOWN, Member

ANY = "inject"  # any road

PROGCL = """
absent("matplotlib"), absent("torch_geometric.nn")
progcl = load("pGRACE/model.py", "progcl")
model = progcl.GRACE(nn.Identity(), 16, 16, tau=0.4)
args = types.SimpleNamespace(epoch_start=1, mode="weight", sel_num=4)
import numpy as np
np.random.seed(0)


class Mixture:  # what a fitted beta mixture says of each similarity
    fit = lambda self, x: None
    posterior = lambda self, x, y: (0.5 + 0.4 * x).detach()
"""

UNISREC = """
class SASRec(nn.Module):
    ITEM_SEQ, ITEM_SEQ_LEN = "seq", "len"

    def __init__(self, config, dataset):
        super().__init__()
        self.layer = nn.Linear(10, 16)


absent("recbole", "recbole.model", "recbole.model.sequential_recommender")
stub("recbole.model.sequential_recommender.sasrec", SASRec=SASRec)
unisrec = load("unisrec.py", "unisrec")
unisrec.UniSRec.forward = lambda self, seq, emb, length: self.layer(emb)
config = {"train_stage": "pretrain", "temperature": 0.07, "lambda": 1e-3, "n_exps": 2, "adaptor_layers": [10, 10],
          "adaptor_dropout_prob": 0.0}
torch.manual_seed(0)
model = unisrec.UniSRec(config, None)
model.moe_adaptor = nn.Linear(10, 16)
model.layer = nn.Linear(16, 16)


def batch(ids):
    keys = ("item_emb_list", "item_emb_list_aug", "pos_item_emb")
    return {key: torch.randn(len(ids), 10) for key in keys} | {
        "item_id": ids, "seq": ids, "len": ids, "seq_aug": ids, "len_aug": ids}
"""

SGL = """
import numpy as np

for name in ("model", "model.base", "util.common", "data"):
    absent(name)
stub("model.base", AbstractRecommender=object), package("util", "util")
stub("reckit", typeassert=lambda *_, **__: lambda f: f, timer=lambda f: f, randint_choice=None)
sgl = load("model/general_recommender/SGL.py", "sgl")
torch.manual_seed(0)
graph = lambda: torch.eye(50).add(0.1 * torch.rand(50, 50)).to_sparse()
sgl.sp_mat_to_sp_tensor = lambda x: x
model = sgl.SGL.__new__(sgl.SGL)
model.lightgcn = sgl._LightGCN(20, 30, 16, graph(), 2)
ids = lambda most: [np.random.RandomState(i).permutation(most)[:12] for i in range(6)]
sgl.PairwiseSamplerV2 = lambda *_, **__: zip(ids(20), ids(30), ids(30))
absent("evaluator")
model.dataset = types.SimpleNamespace(train_data=None)
model.batch_size, model.epochs, model.ssl_aug_type, model.device = 12, 1, "ed", "cpu"
model.create_adj_mat = lambda **_: graph()
model.logger = types.SimpleNamespace(info=lambda *_: None)
model.evaluator = types.SimpleNamespace(metrics_info=lambda: "")
model.best_epoch, model.save_flag, model.pretrain_flag, model.best_result = 0, False, False, [0.0]
model.ssl_temp, model.ssl_reg, model.reg, model.num_ratings, model.verbose = 0.2, 0.1, 1e-4, 72, 2
model.config = {"start_testing_epoch": 9}
model.optimizer = torch.optim.SGD(model.lightgcn.parameters(), 0.01)
model.train_model()
"""

VIP = """
absent("torchvision", "torchvision.utils", "torchvision.transforms")
stub("numpy.core.numeric", full=None)
trainer = load("vip/trainer.py", "vip_trainer").Trainer(1)


class Toy(nn.Module):
    l1weight, l2weight, gamma, num_negatives = 0.0, 0.001, 0.98, 3

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 16))
    def sim(self, a, b):
        return -torch.linalg.norm(a - b, dim=-1)

    def forward(self, x):
        return self.net(x)


torch.manual_seed(0)
toy = Toy()
toy.encoder_opt = torch.optim.SGD(toy.net.parameters(), 1e-3)
toy.__dict__["module"] = toy  # DataParallel names the model it holds so
for step in range(6):
    trainer.update(toy, (torch.rand(12, 5, 3, 4, 4), -torch.ones(12)), step)
"""

CLEAR = """
torch.Tensor.cuda = lambda self, *_, **__: self
package("pcl", "pcl"), absent("scanpy", "anndata", "pcl.loader")
builder = load("pcl/builder.py", "pcl.builder")
clear = load("CLEAR.py", "clear_main")
torch.manual_seed(0)
model = builder.MoCo(builder.MLPEncoder, 30, 16, 48, 0.999, 0.2)
loader = [((torch.rand(12, 30), torch.rand(12, 30)), None, None) for _ in range(6)]
clear.train(loader, model, nn.CrossEntropyLoss(), torch.optim.SGD(model.encoder_q.parameters(), 0.05), 0,
            types.SimpleNamespace(gpu=None))
"""

GENERATIVE = """
for name in ("generative_recommenders", "generative_recommenders.research", "generative_recommenders.research.modeling",
             "generative_recommenders.research.modeling.sequential",
             "generative_recommenders.research.modeling.sequential.losses"):
    package(name, name.replace(".", "/"))
absent("generative_recommenders.research.rails.similarities.module", "generative_recommenders.research.rails")
absent("generative_recommenders.research.rails.similarities")
from generative_recommenders.research.modeling.sequential import autoregressive_losses as samplers
from generative_recommenders.research.modeling.sequential.losses.sampled_softmax import SampledSoftmaxLoss

items = nn.Embedding(40, 16)
model = types.SimpleNamespace(
    similarity_fn=lambda query_embeddings, item_ids, item_embeddings: (
        (query_embeddings.unsqueeze(1) * item_embeddings).sum(-1), {}))
criterion = SampledSoftmaxLoss(8, 0.05, model)
local = samplers.LocalNegativesSampler(40, items, list(range(40)), True, 1e-6)
batch = samplers.InBatchNegativesSampler(True, 1e-6, True)


def loss(sampler, a, ids=None):
    ids = torch.randint(40, (12,)) if ids is None else ids
    sampler.process_batch(ids, torch.ones(12).bool(), items(ids))
    weights = torch.ones(12)
    weights[-1] = %s
    return criterion.jagged_forward(norm(a), ids, items(ids), weights, sampler)[0]
"""

REBAR = """
absent("models.Base_SSLModel", "experiments", "experiments.configs", "experiments.configs.simclr_expconfigs")
absent("experiments.configs.rebar_expconfigs", "utils", "utils.utils", "tqdm", "models.REBAR.REBAR_CrossAttn")
absent("models.REBAR.REBAR_CrossAttn.REBAR_CrossAttn", "models.REBAR")
package("models", "models")
stub("models.Base_SSLModel", BaseModelClass=object)
"""

EIRLI = """
for name in ("imitation", "imitation.util", "imitation.util.logger", "pyro", "pyro.distributions"):
    absent(name)
losses = load("src/il_representations/algos/losses.py", "eirli_losses")
as_dist = lambda x: types.SimpleNamespace(mean=x)
queue = norm(torch.randn(24, 16))
"""

CELLCONTRAST = """
criterion = load("cellContrast/model.py", "cellcontrast_model").ContrastiveLoss(0.05)
near = torch.eye(12).roll(1, 1) + torch.eye(12).roll(-1, 1)
train(lambda a, b: criterion(a, %s))
"""

MEMBERS: dict[str, Member] = {
    **{
        f"ProGCL{title}": Member(
            "ProGCL", PROGCL + f"train(lambda a, b: model.loss(a, b, {more}), modules=[model])\n", losses, command
        )
        for title, more, losses, command in (
            ("", "0, args, None", [("model.py", IN, 2.5, "")], ANY),
            (", weighted", "1, args, Mixture()", [("model.py", UNKNOWN, 0, "")], ""),
        )
    },
    **{
        f"UniSRec{title}": Member(
            "UniSRec",
            UNISREC + LOOP + f"loop(lambda: model.calculate_loss(batch({ids})), model.parameters())\n",
            [("unisrec.py", IN, 14.286, "")] * n,
            command,
        )
        for title, ids, n, command in (
            ("", "torch.arange(12)", 2, ANY),
            (", same items", "torch.arange(12) // 2", 1, ""),  # of which masked pairs add one to the denominator
        )
    },
    "SGL-Torch": Member("SGL-Torch", SGL, [("SGL.py", IN, 5, "")] * 2, ANY),
    "vip": Member("vip", VIP, [], ""),
    "CLEAR": Member("CLEAR", CLEAR, [("CLEAR.py", IN, 5, "column 0")], ANY),
    **{
        f"CellContrast{title}": Member("CellContrast", CELLCONTRAST % labels, losses, ANY if losses else "")
        for title, labels, losses in (
            ("", "near", []),  # several positives, pooled and left out of the denominator
            (", one neighbour", "torch.eye(12).roll(1, 1)", [("model.py", OUT, 20, "")]),
        )
    },
    "KANO": Member(
        "KANO",
        """
package("chemprop", "chemprop"), package("chemprop.models", "chemprop/models")
package("chemprop.models.loss", "chemprop/models/loss")
from chemprop.models.loss.loss import ContrastiveLoss

train(ContrastiveLoss("nce_softmax", 0.1, types.SimpleNamespace(device="cpu")))
""",
        [("loss_computer.py", IN, 20, "half a batch")],
        ANY,
    ),
    **{
        f"generative-recommenders{title}": Member(
            "generative-recommenders",
            GENERATIVE % weight + f"train(lambda a, b: loss({call}), modules=[items])\n",
            losses,
            ANY if losses else "",
        )
        for title, weight, call, losses in (
            ("", "1.0", "local, a", [("sampled_softmax.py", IN, 20, "column 0")]),
            (", in batch", "1.0", "batch, a", [("sampled_softmax.py", IN, 20, "column 0")]),
            (", weights", "0.5", "local, a", [("sampled_softmax.py", IN, 20, "column 0")]),
            (", padding", "0.0", "local, a", [("sampled_softmax.py", IN, 20, "mask")]),
        )
    },
    **{
        f"rebar {title}": Member("rebar", REBAR + code, losses, command)
        for title, code, losses, command in (
            (
                "SimCLR",
                """
SimCLR = load("models/SimCLR/SimCLR_SSLModel.py", "rebar_simclr").SimCLR
model = SimCLR.__new__(SimCLR)
torch.manual_seed(0)
net = nn.Linear(3, 16)
model.tau, model.device, model._encoder = 0.1, "cpu", net
model.encoder = types.SimpleNamespace(train=lambda mode: None, update_parameters=lambda net: None)
model.optimizer = torch.optim.SGD(net.parameters(), 0.05)
model.run_one_epoch([(torch.randn(8, 5, 3), torch.randn(8, 5, 3)) for _ in range(6)], True)
""",
                [("SimCLR_SSLModel.py", IN, 10, "")],
                ANY,
            ),
            (
                "REBAR",
                """
rebar = load("models/REBAR/REBAR_SSLModel.py", "rebar_model")
series = nn.Linear(16, 5 * 16)
as_series = lambda *x: series(torch.cat(x)).view(-1, 5, 16)
train(lambda a, b: rebar.contrastive_loss_imp(as_series(a), as_series(b, a + b, b - 2 * a), torch.arange(12) % 3,
                                              tau=0.1, alpha=0.5), modules=[series])
""",
                [("REBAR_SSLModel.py", IN, 10, "")] * 2,
                ANY,
            ),
        )
    },
    "Loss-Gated-Learning": Member(
        "Loss-Gated-Learning",
        """
torch.device = lambda name: "cpu"
torch.Tensor.cuda = lambda self, *_: self
stub("tools", accuracy=lambda *_, **__: (0, 0))
criterion = load("Stage1/loss.py", "lgl_loss").LossFunction()
train(lambda a, b: criterion(torch.stack([a, b], 1))[0], modules=[criterion])
""",
        [("loss.py", IN, 10, "half a batch")],
        ANY,
    ),
    "MMSSL": Member(
        "MMSSL",
        """
for name in ("dgl", "visdom", "utility", "utility.parser", "Models", "utility.batch_test", "utility.logging"):
    absent(name)
absent("utility.norm"), stub("utility.batch_test"), absent("scipy", "scipy.sparse")
sys.modules["utility.parser"].parse_args = lambda: types.SimpleNamespace(tau=0.5, gpu_id=0, dataset="x")
main = load("MMSSL/main.py", "mmssl_main")
owner = main.Trainer.__new__(main.Trainer)
train(lambda a, b: owner.batched_contrastive_loss(a, b) + owner.batched_contrastive_loss(b, a, batch_size=6))
""",
        [("main.py", IN, 2, "")],
        ANY,
    ),
    "HCCF": Member(
        "HCCF",
        """
stub("Params", args=None)
losses = load("torchVersion/Utils/Utils.py", "hccf_utils")
train(lambda a, b: losses.contrastLoss(a.detach(), b, torch.tensor([1, 2, 4, 5, 8, 9]), 0.1))
""",
        [("Utils.py", IN, 10, "")],
        ANY,
    ),
    "SUBLIME": Member(
        "SUBLIME",
        """
absent("dgl"), stub("utils"), stub("graph_learners", nn=nn, F=F)
stub("layers", GCNConv_dense=None, GCNConv_dgl=None, SparseDropout=None)
GCL = load("model.py", "sublime_model").GCL
train(lambda a, b: GCL.calc_loss(a, b, 0.2, sym=True))
""",
        [("model.py", OUT, 5, "")],
        ANY,
    ),
    **{
        f"eirli {title}": Member(
            "eirli",
            EIRLI + f"criterion = losses.{call}\ntrain(lambda a, b: criterion(as_dist(a), as_dist({b}))[0])\n",
            [("losses.py", IN, 10, positives)],
            ANY,
        )
        for title, call, b, positives in (
            ("symmetric", "SymmetricContrastiveLoss('cpu')", "b", ""),
            ("one-sided", "BatchAsymmetricContrastiveLoss('cpu')", "b", "diagonal"),
            ("queue", "QueueAsymmetricContrastiveLoss('cpu')", "torch.cat([b.detach(), queue])", "column 0"),
            (
                "queue and batch",
                "QueueAsymmetricContrastiveLoss('cpu', use_batch_neg=True)",
                "torch.cat([b.detach(), queue])",
                "diagonal",
            ),
        )
    },
}
