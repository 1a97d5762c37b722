"""Five code bases that were opened last, when everything else was done, and whatever came out of them."""

from __future__ import annotations

from bed import IN, Member

ANY = "inject"

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
}
