"""Code bases chosen by field and fame before anybody read their losses, from retrieval to reidentification."""

from __future__ import annotations

from bed import ALONE, IN, LOOP, UNKNOWN, Member

ANY, CPU = "inject", ("--shims", "cpu")  # any road; `.cuda()` does nothing

COIL = """
coil = load("modeling.py", "coil_modeling")
torch.manual_seed(0)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Embedding(30, 768)

    def forward(self, input_ids, attention_mask=None, **_):
        return types.SimpleNamespace(last_hidden_state=self.net(input_ids))


def words(n, length):
    return {"input_ids": torch.randint(30, (n, length)), "attention_mask": torch.ones(n, length, dtype=torch.long)}


options = types.SimpleNamespace(token_dim=8, cls_dim=16, token_rep_relu=False, token_norm_after=True, pooling="max",
                                cls_norm_after=True, x_device_negatives=False, no_sep=False, no_cls=%s, cls_only=%s)
model = coil.COIL(Words(), options, types.SimpleNamespace(train_group_size=2), types.SimpleNamespace(fp16=False))
loop(lambda: model(words(12, 5), words(24, 9))[0], model.parameters(), lr=0.01)
"""

TEACHER = """
package("models", "multi_modality/models"), package("utils", "multi_modality/utils")
criterion = load("multi_modality/models/criterions.py", "models.criterions").VTC_VTM_Loss(True)
temperature, frames, ids = learned(0.07, "temp"), nn.Linear(16, %d * 16), %s
train(lambda a, b: criterion.vtc_loss(frames(a).view(12, -1, 16), b, ids, temperature.temp, all_gather=True),
      modules=[temperature, frames])
"""

RECFORMER = """
recformer = load("recformer/models.py", "recformer_models")
torch.manual_seed(0)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(10, 16)

    def forward(self, ids, **_):
        return types.SimpleNamespace(pooler_output=self.net(ids), hidden_states=None, attentions=None,
                                     global_attentions=None)


class Own(recformer.%s):
    def __init__(self):
        nn.Module.__init__(self)
        self.config = types.SimpleNamespace(temp=0.05, use_return_dict=True, finetune_negative_sample_size=%d,
                                            item_num=40, hidden_size=16)
        self.longformer, self.sim = Words(), recformer.Similarity(self.config)


model = Own()


def pretrain(model):
    x = torch.randn(12, 10)
    return model(x, input_ids_b=x + 0.5 * torch.randn(12, 10)).loss


def recommend(model):
    if not hasattr(model, "item_embedding"):
        model.init_item_embedding(torch.randn(40, 16))
    return model(torch.randn(12, 10), labels=torch.randint(40, (12,)))
"""

INFOGRAPH = """
sys.path.insert(0, CLONE + "/unsupervised")
import losses
from cortex_DIM.functions import dim_losses
infomax = load("semi-supervised/infomax.py", "infomax")
nodes, parts, several = nn.Linear(16, 5 * 16), nn.Linear(16, 16 * 4), nn.Linear(16, 16 * 3)
owner = torch.arange(12).repeat_interleave(5)
local = lambda x: nodes(x).view(60, 16)
places = lambda x: parts(x).view(12, 16, 4)
views = lambda x: several(x).view(12, 16, 3)
train(lambda a, b: %s, modules=[nodes, parts, several])
"""
MISSED = [("dim_losses.py", UNKNOWN, 0.0, "")]
DIVERGENCE, SUPERVISED = [("gan_losses.py", "binary", 0.0, "")] * 2, [("infomax.py", "binary", 0.0, "")] * 2

MEMBERS = {
    **{
        f"COIL{title}": Member("COIL", LOOP + COIL % how, [("modeling.py", IN, 1.0, "")], ANY)
        for title, how in (("", (False, False)), (", CLS only", (False, True)), (", tokens only", (True, False)))
    },
    **{
        f"unmasked_teacher{title}": Member(
            "unmasked_teacher", ALONE + TEACHER % how, [("criterions.py", IN, scale, positives)] * 2, ANY
        )
        for title, how, scale, positives in (
            ("", (1, "torch.arange(12)"), 14.286, "diagonal"),
            (", repeated ids", (1, "torch.arange(12) // 2"), 14.286, "soft targets"),
            (", frames", (4, "torch.arange(12)"), 1.0, "diagonal"),
        )
    },
    **{
        f"RecFormer{title}": Member(
            "RecFormer",
            LOOP + RECFORMER % how + f"loop(lambda: {loss}, model.parameters())\n",
            [("models.py", IN, 20.0, positives)],
            command,
        )
        for title, how, loss, positives, command in (
            ("", ("RecformerForPretraining", 0), "pretrain(model)", "diagonal", ANY),
            (", all items", ("RecformerForSeqRec", 0), "recommend(model)", "", ""),
            (", sampled items", ("RecformerForSeqRec", 7), "recommend(model)", "column 0", ANY),
        )
    },
    **{
        f"InfoGraph {title}": Member("InfoGraph", INFOGRAPH % loss, losses, command, words=CPU)
        for title, loss, losses, command in (
            ("nodes", "losses.local_global_loss_(local(a), b, None, owner, 'JSD')", DIVERGENCE, ""),
            ("semi-supervised", "infomax.local_global_loss_(local(a), b, None, owner, 'JSD')", SUPERVISED, ""),
            ("teacher", "infomax.global_global_loss_(a, b, None, owner, 'JSD')", SUPERVISED, ""),
            ("DIM fenchel", "dim_losses.fenchel_dual_loss(places(a), b, 'JSD')", DIVERGENCE, ""),
            ("DIM nce", "dim_losses.nce_loss(places(a), b)", [("dim_losses.py", IN, 1.0, "column 0")], ANY),
            ("DIM DV", "dim_losses.donsker_varadhan_loss(places(a), b)", MISSED, ""),
            ("DIM multi fenchel", "dim_losses.multi_fenchel_dual_loss(places(a), views(b), 'JSD')", DIVERGENCE, ""),
            (
                "DIM multi nce",
                "dim_losses.multi_nce_loss(places(a), views(b))",
                [("dim_losses.py", UNKNOWN, 0.0, "")],
                "",
            ),
        )
    },
}
