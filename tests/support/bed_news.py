"""Fields that no other page has, and losses written in unusual ways: hyperbolic, dense, walks, interleaved pairs."""

from __future__ import annotations

from bed import ALONE, IN, LIGHTNING, LOOP, UNKNOWN, Member

ANY, MISSED = "inject", [("model.py", UNKNOWN, 0, "")]  # any road

MERU = """
torch.manual_seed(0)
absent("meru.encoders.text_encoders", "meru.encoders", "loguru")
from meru.models import MERU, CLIPBaseline


class Text(nn.Module):
    width, context_length = 10, 8

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 10)

    def forward(self, tokens):
        return self.words(tokens).cumsum(1)


class Images(nn.Sequential):
    width = 12


model = %s(Images(nn.Flatten(), nn.Linear(48, 12)), Text(), 16%s)
texts = lambda: [torch.randint(29, (5,)) for _ in range(12)]
"""

TACO = """
absent("hydra", "omegaconf")
taco = load("agents/taco.py", "taco")


class Encoder(nn.Module):  # smaller images
    def __init__(self, shape, width):
        super().__init__()
        self.repr_dim, self.net = 3 * 8 * 8, nn.Sequential(nn.Flatten(), nn.Linear(192, 192))

    def forward(self, obs):
        return self.net(obs / 255.0 - 0.5)


taco.Encoder = Encoder
torch.manual_seed(0)
options = dict(lr=1e-3, encoder_lr=1e-3, feature_dim=16, hidden_dim=24, critic_target_tau=0.01, num_expl_steps=0,
               update_every_steps=1, stddev_schedule=0.1, stddev_clip=0.3, use_tb=False, reward=True, multistep=3,
               latent_a_dim=3, curl=True)
agent = taco.TACOAgent((3, 8, 8), (2,), "cpu", **options)
agent.aug = taco.RandomShiftsAug(1)
for _ in range(6):
    obs, later = (torch.randint(256, (12, 3, 8, 8)) for _ in range(2))
    agent.update_taco(obs, torch.rand(12, 2), torch.rand(12, 3, 2), later, torch.rand(12, 1))
"""

GEO_CLIP = """
absent("torchvision", "torchvision.transforms", "tqdm", "PIL")
sys.modules["tqdm"].tqdm = type("Bar", (list,), {"__init__": lambda self, x, **_: list.__init__(self, x),
                                                 "set_description": lambda self, text: None})
package("geoclip", "geoclip"), package("geoclip.model", "geoclip/model")
absent("geoclip.model.image_encoder", "geoclip.model.location_encoder", "geoclip.model.misc")
model = load("geoclip/model/GeoCLIP.py", "geoclip.model.GeoCLIP")
torch.manual_seed(0)
model.ImageEncoder, model.LocationEncoder = lambda: nn.Linear(10, 16), lambda: nn.Linear(2, 16)
geo = model.GeoCLIP(from_pretrained=False, queue_size=48)
data = [(torch.randn(12, 10), torch.randn(12, 2)) for _ in range(6)]
load("geoclip/train/train.py", "geo_train").train(data, geo, torch.optim.SGD(geo.parameters(), 0.05), 0, 12, "cpu")
"""

BIOT = (
    LIGHTNING
    + """
import tempfile

absent("utils", "pytorch_lightning.loggers", "pytorch_lightning.strategies", "pytorch_lightning.callbacks")
absent("pytorch_lightning.callbacks.early_stopping")
sys.modules["pytorch_lightning"] = pl


class Encoder(nn.Module):
    def __init__(self, **_):
        super().__init__()
        self.net = nn.Linear(10, 16)

    def forward(self, x, offset):
        return self.net(F.dropout(x, 0.3)), self.net(x)


stub("model", UnsupervisedPretrain=Encoder)
task = load("run_unsupervised_pretrain.py", "biot").LitModel_supervised_pretrain
task = task(types.SimpleNamespace(lr=1e-3, weight_decay=0.0), tempfile.mkdtemp())
fit(task, [(torch.randn(12, 10), torch.randn(12, 10)) for _ in range(6)])
"""
)

CXR_CLIP = """
from unittest.mock import MagicMock

package("cxrclip", "cxrclip")
one = types.SimpleNamespace(world_size=1, world_rank=0, summary_writer=MagicMock())
stub("cxrclip.util", DistAutogradAllGatherFunction=MagicMock(), GlobalEnv=types.SimpleNamespace(get=lambda: one))
criterion = load("cxrclip/loss/cxr_clip.py", "cxr_loss").CXRClip(%s, i2i_weight=1.0, t2t_weight=0.5)
other, scale = nn.Linear(16, 16), learned(2.659)
train(lambda a, b: criterion(norm(a), norm(b), norm(other(b)), norm(other(a)), torch.arange(12),
                             scale.logit_scale.exp(), True), modules=[other, scale])
"""

FLAIR = """
FlairLoss = load("src/flair/loss.py", "flair_loss").FlairLoss
criterion = FlairLoss(num_cap_per_img=%s)
text, pool = nn.Linear(16, 16 * criterion.num_cap_per_img), nn.MultiheadAttention(16, 2, batch_first=True)
scale = learned(2.3)
train(lambda a, b: criterion(a, text(b).view(-1, 16), scale.logit_scale.exp(), None,
                             image_tokens=torch.stack([a, a.roll(1, 1), -a], 1), visual_proj=lambda *x: pool(*x)[0]),
      modules=[text, pool, scale])
"""

RECBOLE = """
for name in ("recbole", "recbole.model", "recbole.model.abstract_recommender", "recbole.model.init", "recbole.utils",
             "recbole.model.loss"):
    absent(name)


class Recommender(nn.Module):
    USER_ID, ITEM_ID, n_users, n_items = "user", "item", 40, 40

    def __init__(self, config, dataset):
        super().__init__()


sys.modules["recbole.model.abstract_recommender"].GeneralRecommender = Recommender
file = load("recbole/model/general_recommender/%s.py", "directau")
torch.manual_seed(0)
model = file.%s({"embedding_size": 16, "gamma": 0.5, "encoder": "MF", "temp": 0.2}, None)
batch = lambda: {"user": torch.randperm(40)[:12], "item": torch.randperm(40)[:12]}
""" + (LOOP + "loop(lambda: model.calculate_loss(batch()), model.parameters())\n")

BSL = """
package("utils", "utils")
losses = load("utils/losses.py", "utils.losses")
file = load("modules/LGN_Frame.py", "bsl_frame")
model = file.lgn_frame.__new__(file.lgn_frame)
nn.Module.__init__(model)
model.device, model.pool, model.decay, model.u_norm, model.i_norm = "cpu", "mean", 1e-3, True, True
model.loss_fn = losses.BSL(0.2, 1.0, 1.0, mode="reweight", device="cpu")
users, items, ids = nn.Linear(16, 3 * 16), nn.Linear(16, 3 * 16), torch.arange(12)
train(lambda a, b: model.Uniform_loss(users(a).view(12, 3, 16), items(b).view(12, 3, 16), ids)[0],
      modules=[users, items])
"""

SLMREC = """
absent("common", "torch_scatter")
stub("common.abstract_recommender", GeneralRecommender=nn.Module)
slmrec = load("src/models/slmrec.py", "slmrec")
torch.manual_seed(0)
model = slmrec.SLMRec.__new__(slmrec.SLMRec)
nn.Module.__init__(model)
model.config, model.device, model.temp, model.ssl_temp = {"dataset": "x"}, "cpu", 0.2, 0.1
model.infonce_criterion, model.users, model.items = nn.CrossEntropyLoss(), nn.Embedding(40, 16), nn.Embedding(40, 16)
for name in ("g_i_iv", "g_v_iv", "g_iv_iva", "g_iva_ivat", "g_t_ivat"):
    setattr(model, name, nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)))
model.i_emb_i = model.v_emb_i = model.t_emb_i = None


def embedding(users, pos, neg):
    model.i_emb_i, model.v_emb_i, model.t_emb_i = (model.items.weight * x for x in (1, 2, 3))
    return model.users(users), model.items(pos), None, None, None, None


model.getEmbedding = embedding
ids = lambda: torch.randperm(40)[:12]
""" + (LOOP + "loop(lambda: model.infonce(ids(), items := ids()) + 0.5 * model.fac(items), model.parameters())\n")

SIMANS = """
absent("transformers", "transformers.models", "transformers.models.roberta")
for name in ("BertModel", "ElectraModel", "RobertaModel", "PreTrainedModel", "RobertaPreTrainedModel"):
    setattr(sys.modules["transformers"], name, type(name, (nn.Module,), {}))
models = load("SimANS/model/models.py", "simans_models")
bi = models.BiBertEncoder.__new__(models.BiBertEncoder)
nn.Module.__init__(bi)
bi.question_model = bi.ctx_model = lambda input_ids=None, inputs_embeds=None, **_: (
    None, inputs_embeds if input_ids is None else input_ids, None)
train(lambda a, b: bi.forward_adv_pairloss(a, None, b, None, torch.cat([b, a, a]).roll(1, 0), None)[0])
"""

WAV2VEC = """
for name in ("fairseq", "fairseq.data", "fairseq.data.data_utils", "fairseq.distributed", "fairseq.modules",
             "fairseq.distributed.fully_sharded_data_parallel", "fairseq.modules.checkpoint_activations",
             "fairseq.modules.conformer_layer", "fairseq.modules.transformer_sentence_encoder", "fairseq.logging",
             "fairseq.logging.meters", "fairseq.models.wav2vec.utils"):
    absent(name)
as_is = lambda *_, **__: lambda x: x
stub("fairseq.dataclass", ChoiceEnum=lambda names: str, FairseqDataclass=object)
package("fairseq.models", "fairseq/models"), package("fairseq.models.wav2vec", "fairseq/models/wav2vec")
vars(sys.modules["fairseq.models"]).update(BaseFairseqModel=nn.Module, register_model=as_is)


class Criterion(nn.Module):
    def __init__(self, task):
        super().__init__()


stub("fairseq.criterions", FairseqCriterion=Criterion, register_criterion=as_is)
stub("fairseq.utils", is_xla_tensor=lambda x: False, index_put=lambda x, at, value: x.__setitem__(at, value) or x,
     buffered_arange=torch.arange)
wav2vec = load("fairseq/models/wav2vec/wav2vec2.py", "fairseq.models.wav2vec.wav2vec2")
criterion = load("fairseq/criterions/wav2vec_criterion.py", "wav2vec_criterion").Wav2vecCriterion(None, infonce=True)
model = wav2vec.Wav2Vec2Model.__new__(wav2vec.Wav2Vec2Model)
nn.Module.__init__(model)
model.n_negatives, model.cross_sample_negatives, model.logit_temp = 7, 0, 0.1
model.net, model.quantizer = nn.Linear(10, 16), nn.Linear(10, 16)


def forward(source):
    y = model.quantizer(%s)
    negatives, _ = model.sample_negatives(y, y.size(1))
    return {"x": model.compute_preds(model.net(source), y, negatives)}


model.forward = forward
torch.manual_seed(0)
sample = lambda: {"net_input": {"source": torch.randn(3, 9, 10)}, "id": torch.arange(3)}
""" + (LOOP + "loop(lambda: criterion(model, sample())[0], model.parameters(), lr=0.005)\n")

BOLTS_FILE = "self_supervised_learning.py"
BOLTS = """
stub("pl_bolts.utils.stability", under_review=lambda *_: lambda x: x), absent("pl_bolts.models.vision.pixel_cnn")
absent("pl_bolts", "pl_bolts.models", "pl_bolts.models.vision", "pl_bolts.utils")
losses = load("src/pl_bolts/losses/self_supervised_learning.py", "bolts_losses")
losses.PixelCNN = lambda channels: nn.Conv2d(channels, channels, 1)
torch.manual_seed(0)
"""

DENSECL = """
torch.Tensor.cuda = lambda self, *_, **__: self
kept = types.SimpleNamespace(register_module=lambda x: x)
package("openselfsup", "openselfsup"), package("openselfsup.models", "openselfsup/models")
package("openselfsup.models.heads", "openselfsup/models/heads")
absent("openselfsup.utils", "openselfsup.models.builder")
stub("openselfsup.models.registry", MODELS=kept, HEADS=kept)
from openselfsup.models.densecl import DenseCL
from openselfsup.models.heads.contrastive_head import ContrastiveHead

torch.manual_seed(0)


class Neck(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.dense = nn.Linear(8, 16), nn.Conv2d(8, 16, 1)

    def forward(self, x):
        grid = self.dense(x[0]).flatten(2)
        return self.one(x[0].mean((2, 3))), grid, grid.mean(2)


class Backbone(nn.Conv2d):
    forward = lambda self, x: [super(Backbone, self).forward(x)]


model = DenseCL.__new__(DenseCL)
nn.Module.__init__(model)
model.encoder_q, model.encoder_k = (nn.Sequential(Backbone(3, 8, 1), Neck()) for _ in range(2))
model.encoder_k.requires_grad_(False)
model.head, model.queue_len, model.momentum, model.loss_lambda = ContrastiveHead(0.2), 24, 0.9, 0.5
for name in ("queue", "queue2"):
    model.register_buffer(name, F.normalize(torch.randn(16, 24), dim=0))
    model.register_buffer(name + "_ptr", torch.zeros(1, dtype=torch.long))
""" + (LOOP + "loop(lambda: sum(model(torch.randn(12, 2, 3, 2, 2)).values()), model.encoder_q.parameters())\n")

WALK = """
torch.Tensor.cuda = lambda self, *_, **__: self
absent("torchvision", "utils")
import utils

torch.manual_seed(0)
utils.make_encoder = lambda args: nn.Conv3d(3, 8, (1, 4, 4), stride=(1, 4, 4))
crw = load("code/model.py", "crw").CRW(types.SimpleNamespace(device="cpu", temp=0.1, dropout=0.1))
""" + (LOOP + "loop(lambda: crw(torch.randn(2, 4, 12 * 3, 4, 4))[1], crw.parameters())\n")

COCLR = """
torch.Tensor.cuda = lambda self, *_, **__: self
package("model", "model"), absent("backbone", "backbone.select_backbone", "torchvision", "torchvision.utils", "tqdm")
absent("torchvision.transforms", "utils", "utils.augmentation", "utils.transforms", "utils.tensorboard_utils")
absent("dataset", "dataset.lmdb_dataset", "utils.utils", "tensorboardX", "matplotlib", "matplotlib.pyplot")
pretrain = load("model/pretrain.py", "model.pretrain")
multi_nce_loss = load("main_coclr.py", "main_coclr").multi_nce_loss
pretrain.select_backbone = lambda name: (nn.Conv3d(3, 8, 1), {"feature_size": 8})
torch.manual_seed(0)
model = pretrain.UberNCE(dim=16, K=24, T=0.1)
model.queue_label = (%s).long()
""" + (
    LOOP + "loop(lambda: multi_nce_loss(*model(torch.randn(12, 2, 3, 2, 2, 2), torch.arange(12) // 2)), "
    "model.encoder_q.parameters())\n"
)

KD = """
torch.Tensor.cuda = lambda self, *_, **__: self
losses = load("src/open_clip/loss.py", "clip_kd")
losses.dist.all_gather = lambda to, x: [y.copy_(x.roll(i, 0) * (1 - i / 10)) for i, y in enumerate(to)]  # two ranks
weights = {f"alpha_{name}_loss": %s for name in ("ckd", "icl", "cross_kd", "fd", "gd", "afd")}
args = types.SimpleNamespace(t_embed_dim=16, s_embed_dim=16, **weights)
criterion, scale, teacher = losses.KDClipLoss(args, world_size=2), learned(2.659), nn.Linear(16, 16)
train(lambda a, b: sum(criterion(a, b, scale.logit_scale.exp(), norm(teacher(a)).detach(), norm(b).detach(), 20.0)),
      modules=[criterion, scale])
"""

GRAPHLOG = """
for name in ("loader", "dataloader", "torch_geometric", "torch_geometric.nn", "torch_geometric.data", "model", "tqdm",
             "splitters", "util", "sklearn", "sklearn.metrics", "pandas", "tensorboardX", "torch_geometric.utils"):
    absent(name)
log = load("pretrain_graphlog.py", "graphlog")
"""

MEMBERS: dict[str, Member] = {
    "meru, CLIP": Member(
        "meru",
        ALONE + MERU % ("CLIPBaseline", "") + LOOP + 'loop(lambda: model(torch.rand(12, 3, 4, 4), texts())["loss"], '
        "model.parameters())\n",
        [("models.py", IN, 14.286, "")] * 2,
        ANY,
    ),
    "meru, hyperbolic": Member(
        "meru",
        ALONE
        + MERU % ("MERU", ", entail_weight=0.2")
        + LOOP
        + 'loop(lambda: model(torch.rand(12, 3, 4, 4), texts())["loss"], '
        "model.parameters())\n",
        [("models.py", IN, 1, "")] * 2,
        ANY,
    ),
    "TACO": Member("TACO", TACO, [("taco.py", IN, 0, "")] * 2, ANY),
    "geo-clip": Member("geo-clip", GEO_CLIP, [("train.py", IN, 14.286, "")], ANY, needs=("transformers",)),
    "BIOT": Member("BIOT", BIOT, [("run_unsupervised_pretrain.py", IN, 5, "")] * 2, ANY, needs=("lightning",)),
    **{
        f"cxr-clip{title}": Member("cxr-clip", CXR_CLIP % smooth, [("cxr_clip.py", IN, 14.286, "")] * 12, ANY)
        for title, smooth in (("", 0.0), (", smoothed labels", 0.1))
    },
    **{
        f"flair{title}": Member("flair", FLAIR % more, [("loss.py", form, 0, "") for form in forms])
        for title, more, forms in (
            ("", "2", ["binary"]),
            (", two terms", "2, added_mps_loss=True", ["binary"] * 2),
            (", two terms, one caption", "1, added_mps_loss=True", ["binary", "siglip"]),
        )
    },
    "DirectAU": Member("DirectAU", RECBOLE % ("directau", "DirectAU"), [("directau.py", UNKNOWN, 0, "")]),
    "DirectAU CLRec": Member("DirectAU", RECBOLE % ("clrec", "CLRec"), [("clrec.py", IN, 5, "")], ANY),
    "BSL": Member("BSL", BSL, [("losses.py", UNKNOWN, 0, "")]),  # of its first anchor, a swap counts the positive twice
    "SLMRec": Member("MMRec", SLMREC, [("slmrec.py", IN, 0, "")] * 3, ANY, needs=("sklearn",)),
    "SimANS": Member("SimXNS", SIMANS, [("models.py", IN, 1, "")], ANY),  # adversarial: its positive is a negative
    **{
        f"fairseq wav2vec 2.0{title}": Member(
            "fairseq", WAV2VEC % source, [("wav2vec_criterion.py", IN, 10, "column 0")], ANY
        )
        for title, source in (("", "source"), (", repeats", "source[..., :1].sign() * source.new_ones(10)"))
    },
    **{
        f"lightning-bolts {title}": Member("lightning-bolts", BOLTS + code, [(BOLTS_FILE, form, 0, "")])
        for title, code, form in (
            (
                "CPC",
                "task, up = losses.CPCTask(8, 16), nn.Linear(16, 8 * 9)\n"
                "train(lambda a, b: task(up(a).view(-1, 8, 3, 3)), modules=[task, up], batch=4)\n",
                IN,  # but its labels look like classes
            ),
            (
                "AMDIM",
                "task, up = losses.AmdimNCELoss(10), nn.Linear(16, 64)\n"
                "as_maps = lambda b: up(b).view(12, 16, 4).permute(1, 0, 2).reshape(16, -1)\n"
                "train(lambda a, b: sum(task(a, as_maps(b), torch.eye(12))), modules=[up])\n",
                UNKNOWN,
            ),
        )
    },
    **{
        f"GraphLoG{title}": Member("GraphLoG", GRAPHLOG + f"train(lambda a, b: log.{call}[0])\n", losses, command)
        for title, call, losses, command in (
            (" graphs", "inter_NCE_loss(a, b, 'cpu')", [("pretrain_graphlog.py", IN, 10, "")], ANY),
            (
                " nodes",
                "intra_NCE_loss(a, b, types.SimpleNamespace(batch=torch.arange(12) // 6, "
                "masked_node_indices=torch.tensor([1, 4, 7, 9])))",
                [("pretrain_graphlog.py", "nca:estimator=g0", 10, "mask")],
                ANY,
            ),
            (
                " nodes and graphs",
                f"gl_NCE_loss(a, b[:3], torch.tensor({[0] * 3 + [1] * 4 + [2] * 5}))",
                [("pretrain_graphlog.py", UNKNOWN, 0, "")],
                "",
            ),
        )
    },
    "mvgrl": Member(
        "mvgrl",
        """
absent("sklearn", "sklearn.svm", "sklearn.metrics", "sklearn.model_selection")
losses = load("graph/utils.py", "mvgrl_utils")
train(lambda a, b: losses.local_global_loss_(a, b[:3], torch.arange(12) // 4))
""",
        [("utils.py", "binary", 0, "")] * 2,
    ),
    **{
        f"s3prl GE2E, {method}": Member(
            "s3prl",
            f"""
absent("s3prl", "s3prl.upstream", "s3prl.upstream.mockingjay", "s3prl.upstream.mockingjay.model")
criterion = load("s3prl/downstream/voxceleb2_ge2e/model.py", "ge2e").GE2E(loss_method={method!r})
train(lambda a, b: criterion(torch.stack([a, b, a + b], 1)), modules=[criterion])
""",
            losses,
            command,
        )
        for method, losses, command in (("softmax", [("model.py", IN, 10, "")], ANY), ("contrast", MISSED, ""))
    },
    "Condenser": Member(
        "Condenser",
        """
absent("transformers", "transformers.models.bert.modeling_bert", "transformers.models.bert", "transformers.models")
absent("transformers.modeling_outputs", "transformers.models.roberta.modeling_roberta", "arguments")
absent("transformers.models.roberta")
model = load("modeling.py", "condenser").CoCondenserForPretraining
owner = model.__new__(model)
nn.Module.__init__(owner)
owner.co_target = torch.arange(24).view(-1, 2).flip([1]).flatten()
train(lambda a, b: owner.compute_contrastive_loss(torch.stack([a, b], 1).flatten(0, 1)))
""",
        [("modeling.py", IN, 1, "")],
        ANY,
    ),
    "DenseCL": Member("DenseCL", ALONE + DENSECL, [("contrastive_head.py", IN, 5, "column 0")], ANY),
    "videowalk": Member("videowalk", WALK, [("model.py", IN, 1, "")], ANY),  # of walks, not of similarities
    **{
        f"CoCLR UberNCE{title}": Member(
            "CoCLR", ALONE + COCLR % queue, [("main_coclr.py", "nca:estimator=g0", 10, "")], ANY
        )
        for title, queue in (("", "torch.arange(24) // 4"), (", empty queue", "-torch.ones(24)"))
    },
    "CLIP-KD": Member("CLIP-KD", KD % 0.0, [("loss.py", IN, 14.286, "")] * 2, ANY),
    "CLIP-KD, all terms": Member(
        "CLIP-KD", KD % 1.0, [("loss.py", IN, scale, "") for scale in (14.286, 2.659, 2.659) for _ in range(2)]
    ),
}
