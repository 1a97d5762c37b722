"""Code bases that were opened last, when everything else was done, and whatever came out of them."""

from __future__ import annotations

from bed import IN, OUT, Member

ANY = "inject"

SIMKGC = """
import transformers

transformers.AdamW = torch.optim.AdamW
stub("config"), stub("doc", Dataset=None, collate=None), stub("dict_hub", build_tokenizer=None)
stub("triplet_mask", construct_mask=None)
import models
from trainer import Trainer


class Own(models.CustomBertModel):
    def __init__(self):
        nn.Module.__init__(self)
        self.args = types.SimpleNamespace(use_self_negative=True)
        self.log_inv_t = nn.Parameter(torch.tensor(20.0).log())
        self.add_margin, self.batch_size, self.pre_batch = {margin}, 12, 0
        self.hr_bert, self.tail_bert = nn.Linear(10, 16), nn.Linear(10, 16)

    def _encode(self, encoder, token_ids, **_):
        return norm(encoder(token_ids))


torch.manual_seed(0)
trainer = Trainer.__new__(Trainer)
trainer.model, trainer.criterion = Own(), nn.CrossEntropyLoss()
trainer.args = types.SimpleNamespace(use_amp=False, grad_clip=10, print_freq=100, eval_every_n_step=100)
trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), 1e-3)
trainer.scheduler = torch.optim.lr_scheduler.ConstantLR(trainer.optimizer)
names = [f"{who}_{what}" for who in ("hr", "tail", "head") for what in ("token_ids", "mask", "token_type_ids")]
masks = {"triplet_mask": (torch.rand(12, 12) < 0.8) | torch.eye(12).bool(), "self_negative_mask": torch.rand(12) < 0.8}
more = masks | {"batch_data": [0] * 12}
trainer.train_loader = [{name: torch.randn(12, 10) for name in names} | more for _ in range(6)]
trainer.train_epoch(0)
"""
PCL = """
import random

torch.Tensor.cuda = lambda self, *args, **_: self
builder = load("pcl/builder.py", "pcl_builder")
builder.sample = lambda ids, n: random.sample(sorted(ids), n)  # Python 3.11 takes no set
builder.concat_all_gather = lambda x: x
builder.MoCo._batch_shuffle_ddp = lambda self, x: (x, None)
builder.MoCo._batch_unshuffle_ddp = lambda self, x, _: x
absent("faiss", "tensorboard_logger", "pcl", "pcl.loader", "pcl.builder")
main = load("main_pcl.py", "main_pcl")
torch.manual_seed(0), random.seed(0)
model = builder.MoCo(lambda num_classes: nn.Sequential(nn.Flatten(), nn.Linear(10, num_classes)), dim=16, r=24, T=0.2)
clusters = {
    "im2cluster": [torch.arange(120) % 40, torch.arange(120) % 30],
    "centroids": [norm(torch.randn(40, 16)), norm(torch.randn(30, 16))],
    "density": [0.1 + 0.2 * torch.rand(n) for n in (40, 30)],
}
args = types.SimpleNamespace(gpu=None, num_cluster=[40, 30], print_freq=100)
loader = [([torch.randn(4, 10), torch.randn(4, 10)], torch.randperm(120)[:4]) for _ in range(6)]
main.train(loader, model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.03), 0, args, clusters)
"""
ADGCL = """
calc_loss = load("unsupervised/learning/ginfominmax.py", "adgcl_ginfominmax").GInfoMinMax.calc_loss
torch.manual_seed(0)
model, learner = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16)), nn.Linear(10, 10)
optimizers = [torch.optim.SGD(module.parameters(), 0.05) for module in (learner, model)]
for _ in range(6):
    x = torch.randn(12, 10)
    view_loss = calc_loss(model(x), model(x * learner(x).sigmoid())) - 0.5 * learner(x).sigmoid().mean()
    learner.zero_grad()
    (-view_loss).backward()  # the view is made as hard as possible
    optimizers[0].step()
    model.zero_grad()
    calc_loss(model(x), model(x * learner(x).sigmoid().detach())).backward()
    optimizers[1].step()
"""
CONTRASTIVE_GAP = """
criterion, scale = load("src/my_ce_loss.py", "my_ce_loss").MyCrossEntropyLoss(), learned(2.6593)


def loss(a, b):
    a, b, labels = norm(a), norm(b), torch.arange(len(a))
    logits = a @ b.t() * scale.logit_scale.exp(), b @ a.t() * scale.logit_scale.exp()
    return sum(0.5 * criterion(each, labels) for each in logits)


train(loss, modules=[scale])
"""

MEMBERS = {
    **{
        f"MoleculeSTM {name}": Member(
            "MoleculeSTM",
            f"""
absent("torch_geometric", "torch_geometric.loader", "MoleculeSTM.datasets", "MoleculeSTM.models", "MoleculeSTM.utils")
absent("MoleculeSTM.models.mega_molbart", "MoleculeSTM.models.mega_molbart.mega_mol_bart")
pretrain = load("scripts/pretrain.py", "molecule_stm_pretrain")
args = types.SimpleNamespace(normalize=True, SSL_loss={name!r}, CL_neg_samples=1, T=0.1)
train(lambda a, b: (pretrain.do_CL(a, b, args)[0] + pretrain.do_CL(b, a, args)[0]) / 2)
""",
            losses,
            command,
        )
        for name, losses, command in (
            ("InfoNCE", [("pretrain.py", IN, 10, "diagonal")], ANY),
            ("EBM_NCE", [("pretrain.py", "binary", 0, "")] * 2, ""),
        )
    },
    "NCL": Member(
        "NCL",
        """
absent("faiss", "recbole", "recbole.model", "recbole.model.init", "recbole.model.loss", "recbole.utils")
stub("recbole.model.abstract_recommender", GeneralRecommender=nn.Module)
from ncl import NCL

torch.manual_seed(0)
model = NCL.__new__(NCL)
nn.Module.__init__(model)
model.n_users, model.n_items, model.ssl_temp, model.ssl_reg, model.alpha, model.proto_reg = 30, 40, 0.1, 0.1, 1.0, 0.1
model.user_embedding, model.item_embedding = nn.Embedding(30, 8), nn.Embedding(40, 8)
model.user_centroids, model.item_centroids = norm(torch.randn(5, 8)), norm(torch.randn(6, 8))
model.user_2cluster, model.item_2cluster = torch.randint(5, (30,)), torch.randint(6, (40,))
mix = torch.softmax(torch.randn(70, 70), 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(6):
    user, item, center = torch.randperm(30)[:12], torch.randperm(40)[:12], model.get_ego_embeddings()
    loss = model.ssl_layer_loss(mix @ center, center, user, item) + model.ProtoNCE_loss(center, user, item)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        [("ncl.py", IN, 10, "")] * 4,
        ANY,
    ),
    "audio-text retrieval": Member(
        "audio-text_retrieval",
        """
criterion = load("tools/loss.py", "audio_text_loss").NTXent()
train(lambda a, b: criterion(a, b, torch.arange(12)))
""",
        [("loss.py", IN, 1 / 0.07, "diagonal")] * 2,
        ANY,
        ("sentence_transformers",),
    ),
    "CoCoSoDa": Member(
        "CoCoSoDa",
        """
import transformers

transformers.AdamW = torch.optim.AdamW
transformers.get_linear_schedule_with_warmup = None
absent("prettytable")
from model import Multi_Loss_CoCoSoDa


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)

    def forward(self, ids, attention_mask):
        return self.words(ids), None


torch.manual_seed(0)
settings = dict(moco_k=24, moco_m=0.9, moco_t=0.07, moco_dim=16, time_score=1, do_whitening=False, agg_way="avg")
args = types.SimpleNamespace(**settings, do_ineer_loss=True, do_multi_lang_continue_pre_train=True)
model = Multi_Loss_CoCoSoDa(Encoder(), args)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(6):
    inputs = torch.randint(2, 50, (4, 12, 7))
    logits, labels, *_ = model(source_code_q=inputs[0], source_code_k=inputs[1], nl_q=inputs[2], nl_k=inputs[3])
    loss = F.cross_entropy(20 * logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        [("driver.py", IN, 20 / 0.07, "")],
        ANY,
    ),
    **{
        f"softclt {name}": Member(
            "softclt",
            f"""
sys.path.insert(0, os.path.join(CLONE, "softclt_ts2vec"))
package("models", "softclt_ts2vec/models")
losses = load("softclt_ts2vec/models/soft_losses.py", "softclt_losses")
soft = (torch.rand(12, 12) + torch.eye(12)).numpy()
how = dict(lambda_=0.5, soft_temporal={soft}, soft_instance={soft})
train(lambda a, b: losses.hier_CL_soft(a.view(12, 4, 4), b.view(12, 4, 4), soft, **how))
""",
            found,
            command,
        )
        for name, soft, found, command in (
            ("hard", False, [("hard_losses.py", IN, 1, "")] * 2, ANY),
            ("soft", True, [], ""),
        )
    },
    **{
        f"SimKGC, {name}": Member(
            "SimKGC",
            SIMKGC.replace("{margin}", margin),
            [("trainer.py", IN, 20, "diagonal")] * 2,
            command,
            ("transformers.modeling_utils",),
        )
        for name, margin, command in (("no margin", "0.0", ANY), ("additive margin", "0.02", ""))
    },
    "CPC_audio": Member(
        "CPC_audio",
        """
absent("progressbar")
package("cpc", "cpc"), package("cpc.criterion", "cpc/criterion")
from cpc.criterion.criterion import CPCUnsupersivedCriterion

torch.manual_seed(0)
encoder, context = nn.Linear(10, 16), nn.GRU(16, 12, batch_first=True)
criterion = CPCUnsupersivedCriterion(3, 12, 16, 8)
optimizer = torch.optim.Adam([p for m in (encoder, context, criterion) for p in m.parameters()], 1e-3)
for _ in range(6):
    encoded = encoder(torch.randn(4, 20, 10))
    losses, _ = criterion(context(encoded)[0], encoded, None)
    losses.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        [("criterion.py", IN, 1 / 16, "column 0")],
        ANY,
    ),
    "PCL": Member("PCL", PCL, [("main_pcl.py", IN, 5, "column 0"), ("main_pcl.py", IN, 1, "diagonal")], ANY),
    "AD-GCL": Member("adgcl", ADGCL, [("ginfominmax.py", OUT, 5, "")], ANY),
    "contrastive-gap": Member("contrastive-gap", CONTRASTIVE_GAP, [("my_ce_loss.py", IN, 14.287, "diagonal")], ANY),
}
