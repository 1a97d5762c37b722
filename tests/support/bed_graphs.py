"""Graphs and recommenders."""

from __future__ import annotations

from bed import IN, PYG, REPLACE, SITE, Member

MEMBERS = {
    "GRACE": Member(
        "GRACE",
        """
from model import Encoder, Model, drop_feature

torch.manual_seed(0)
model = Model(Encoder(10, 8, F.relu), 8, 8, 0.4)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
x, edges = torch.randn(12, 10), torch.randint(0, 12, (2, 30))
for _ in range(6):
    z1, z2 = model(drop_feature(x, 0.2), edges), model(drop_feature(x, 0.3), edges)
    loss = model.loss(z1, z2, batch_size=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        [("model.py", IN, 2.5, "")],
        PYG,
        needs=("torch_geometric",),
    ),
    **{
        f"PyGCL {name}": Member(
            "PyGCL",
            f"""
package("GCL", "GCL")
package("GCL.losses", "GCL/losses")
from GCL.losses.infonce import {name}

loss, eye = {name}(tau=0.2), torch.eye(12)
train(lambda a, b: {call})
""",
            [losses],
            command,
        )
        for name, call, losses, command in (
            (
                "InfoNCE",
                "(loss(a, b, eye, 1 - eye) + loss(b, a, eye, 1 - eye)) / 2",
                ("infonce.py", IN, 5, "diagonal"),
                PYG,
            ),
            ("InfoNCESP", "loss(a, b, eye)", ("infonce.py", IN, 5, "diagonal"), PYG),
        )
    },
    "PyGCL JSD": Member(
        "PyGCL",
        """
package("GCL", "GCL")
package("GCL.losses", "GCL/losses")
from GCL.losses.jsd import JSD

loss, eye = JSD(), torch.eye(12)
train(lambda a, b: loss(a, b, eye, 1 - eye))
""",
        [("jsd.py", "binary", 0, "")] * 2,
    ),
    "GCA": Member(
        folder="GCA",
        code="""
from pGRACE.model import GRACE

model = GRACE(nn.Module(), 16, 16, 0.4)
train(lambda a, b: model.loss(a, b), modules=[model])
""",
        losses=[("model.py", IN, 2.5, "")],
        command=PYG,
        needs=("torch_geometric",),
    ),
    "HeCo": Member(
        folder="HeCo",
        code="""
sys.path.insert(0, CLONE + "/code")
from module.contrast import Contrast

contrast, groups = Contrast(16, 0.8, 0.5), torch.arange(12) % 6
train(lambda a, b: contrast(a, b, (groups[:, None] == groups).float().to_sparse()), modules=[contrast])
""",
        losses=[("contrast.py", "nca", 1.25, "")],
        command=SITE,
    ),
    "SELFRec InfoNCE": Member(
        folder="SELFRec",
        code="""
from util.loss_torch import InfoNCE, bpr_loss

train(lambda a, b: bpr_loss(a, b, b.roll(1, 0)) + 0.2 * (InfoNCE(a, b, 0.2) + InfoNCE(b, a, 0.2)))
""",
        losses=[("loss_torch.py", IN, 5, "diagonal")],
        command=REPLACE,
    ),
    "SELFRec batch softmax": Member(
        folder="SELFRec",
        code="""
from util.loss_torch import batch_softmax_loss

train(lambda a, b: batch_softmax_loss(a, b, 0.2))
""",
        losses=[("loss_torch.py", IN, 5, "diagonal")],
        command=REPLACE,
    ),
    "GCC": Member(
        "GCC",
        """
torch.Tensor.cuda = lambda self: self
package("gcc", "gcc")
package("gcc.contrastive", "gcc/contrastive")
from gcc.contrastive.criterions import NCESoftmaxLoss
from gcc.contrastive.memory_moco import MemoryMoCo

memory, criterion = MemoryMoCo(16, None, 24, 0.07, use_softmax=True), NCESoftmaxLoss()
train(lambda a, b: criterion(memory(norm(a), norm(b))))
""",
        [("criterions.py", IN, 14.286, "column 0")],
        SITE,
    ),
    "LightGCL": Member(
        "LightGCL",
        """
from model import LightGCL

torch.manual_seed(0)
users, items = 400, 600
links = (torch.rand(users, items) < 0.2) * 0.01
u, s, v = torch.svd_lowrank(links, q=3)
model = LightGCL(
    users, items, 8, u * s, v * s, u.T, v.T, None, links.to_sparse().coalesce(), 2, 0.2, 0.2, 1e-7, 0.0, 12, "cpu"
)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for _ in range(6):
    rows, pos, neg = torch.randperm(users)[:12], torch.randint(items, (12,)), torch.randint(items, (12,))
    loss = model(rows, torch.cat([pos, neg]).unique(), pos, neg)[0]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        [("model.py", IN, 5, "one key")] * 2,
        "--product",
    ),
    "DuoRec": Member(
        "DuoRec",
        """
stub("colorlog", ColoredFormatter=object)
stub("colorama", init=lambda **_: None)
for name in ("recbole", "recbole.model", "recbole.model.sequential_recommender"):
    package(name, name.replace(".", "/"))
from recbole.model.sequential_recommender.duorec import DuoRec

names = dict(USER_ID_FIELD="u", ITEM_ID_FIELD="i", LIST_SUFFIX="_list", ITEM_LIST_LENGTH_FIELD="len", NEG_PREFIX="-")
sizes = dict(MAX_ITEM_LIST_LENGTH=7, n_layers=1, n_heads=2, hidden_size=16, inner_size=16, train_batch_size=12)
rates = dict(hidden_dropout_prob=0.3, attn_dropout_prob=0.3, layer_norm_eps=1e-12, initializer_range=0.2)
losses = dict(lmd=0.1, lmd_sem=0.1, loss_type="CE", contrast="us", tau=1.0, sim="dot", hidden_act="gelu")
torch.manual_seed(0)
model = DuoRec({**names, **sizes, **rates, **losses, "device": "cpu"}, types.SimpleNamespace(num=lambda field: 40))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for _ in range(6):
    one, two = torch.randint(1, 40, (2, 12, 7))
    batch = {model.ITEM_SEQ: one, model.POS_ITEM_ID: one[:, 0], "sem_aug": two}
    loss = model.calculate_loss(batch | dict.fromkeys((model.ITEM_SEQ_LEN, "sem_aug_lengths"), torch.full((12,), 7)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        [("duorec.py", IN, 1, "column 0")] * 2,
        SITE,
    ),
}
