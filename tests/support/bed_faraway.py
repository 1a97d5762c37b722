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

TNC = """
absent("matplotlib", "matplotlib.pyplot", "seaborn", "statsmodels", "statsmodels.tsa", "statsmodels.tsa.stattools")
package("tnc", "tnc"), absent("tnc.utils", "tnc.evaluations")
from tnc.models import RnnEncoder
torch.manual_seed(0)
encoder, series = RnnEncoder(24, 3, 16), torch.randn(120, 3, 200)


def optimizer(*others):
    return torch.optim.Adam([p for module in (encoder, *others) for p in module.parameters()], lr=0.001)


"""
NEIGHBORS = """
tnc = load("tnc/tnc.py", "tnc_loss")
critic = tnc.Discriminator(16, "cpu")
batches = [(torch.randn(12, 3, 20), *torch.randn(2, 12, 4, 3, 20), 0) for _ in range(6)]
tnc.epoch_run(batches, critic, encoder, "cpu", w=0.05, optimizer=optimizer(critic))
"""
PREDICTIVE = """
cpc, critic, context = load("baselines/cpc.py", "tnc_cpc"), nn.Linear(16, 16), nn.GRU(16, 16, batch_first=True)
cpc.epoch_run(series[:8].numpy(), critic, context, encoder, "cpu", 10, optimizer=optimizer(critic, context))
"""
TRIPLET = """
triplet = load("baselines/triplet_loss.py", "tnc_triplet")
triplet.epoch_run(series.numpy(), encoder, "cpu", 40, optimizer=optimizer())
"""

TORTOISE = """
class Layers(nn.Module):
    def __init__(self, *_, dim=16, **__):
        super().__init__()
        self.net = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        return x + self.net(x)


def same(*_, **__):
    return nn.Identity()


package("tortoise", "tortoise"), package("tortoise.models", "tortoise/models")
stub("tortoise.models.arch_util", CheckpointedXTransformerEncoder=Layers, AttentionBlock=same)
stub("tortoise.models.transformer", Transformer=Layers)
stub("tortoise.models.xtransformers", ContinuousTransformerWrapper=Layers, Encoder=dict)
torch.manual_seed(0)
"""
VOICES = """
from tortoise.models.cvvp import CVVP
model = CVVP(model_dim=16, transformer_heads=1, conditioning_enc_depth=1, mel_channels=10, speech_enc_depth=1)
loop(lambda: model(torch.randn(12, 10, 20), torch.randn(12, 10, 19), return_loss=True), model.parameters())
"""
SPEECH = """
from tortoise.models.clvp import CLVP
model = CLVP(dim_text=16, dim_speech=16, dim_latent=16, num_text_tokens=30, text_seq_len=12, num_speech_tokens=40,
             speech_seq_len=25, text_mask_percentage=0.2, voice_mask_percentage=0.2)
loop(lambda: model(torch.randint(30, (12, 12)), torch.randint(40, (12, 25)), return_loss=True), model.parameters())
"""

FIELDS = """
class Grid(nn.Module):
    def __init__(self, num_levels, level_dim, **_):
        super().__init__()
        self.net = nn.Linear(3, num_levels * level_dim)

    def forward(self, x, bound):
        return self.net(x)


stub("gridencoder", GridEncoder=Grid), absent("wandb", "dataloaders")
fields = load("train.py", "clip_fields")
torch.manual_seed(0)
model = fields.GridCLIPModel(mlp_width=24, device="cpu", image_rep_size=16, text_rep_size=16)
"""
ROOMS = """
classifier = types.SimpleNamespace(total_label_classes=5, calculate_classifications=lambda **latents: torch.softmax(
    latents["model_text_features"][:, :5], -1))


def batch():
    return dict(xyz=torch.randn(12, 3), clip_vector=torch.randn(12, 16), clip_image_vector=torch.randn(12, 16),
                distance=torch.rand(12), semantic_weight=torch.rand(12), img_idx=torch.randint(6, (12,)),
                label=torch.randint(7, (12,)))


optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
fields.train([batch() for _ in range(6)], model, optimizer, 0, classifier, device="cpu", disable_tqdm=True)
"""
POINTS = "loop(lambda: model.compute_loss(model(torch.randn(12, 3))[0], torch.randn(12, 16)), model.parameters())"

CLAMP = """
import numpy as np
import tqdm
absent("mlflow", "mlflow.entities", "mlflow.tracking", "wandb", "loguru", "clamp.dataset", "mhnreact")
stub("mhnreact.utils", top_k_accuracy=lambda *_, **__: (0, 0))
import clamp.utils
torch.manual_seed(0)


class Done(Exception):  # the first epoch, before metrics that need a data set
    pass


def done(**_):
    raise Done


clamp.utils.metrics = types.SimpleNamespace(swipe_threshold_sparse=done)


class Assays:
    compound_features_size, assay_features_size, num_compounds, num_assays = 10, 10, 72, 72
    activity = types.SimpleNamespace(data=np.ones(72), row=np.arange(72), col=np.arange(72))

    def __getitem__(self, rows):
        return np.array(rows), *torch.randn(3, len(rows), 10), (torch.rand(len(rows)) < 0.5).float()


settings = dict(model="MLPLayerNorm", compound_layer_sizes=[24], assay_layer_sizes=[24], embedding_size=16, lr_ini=0.001,
                epoch_max=1, batch_size=12, dropout_input=0.1, dropout_hidden=0.1, l2=0.0005, patience=3,
                optimizer="AdamW", loss_fun=%r, beta=1)
rows = np.arange(72)
try:
    clamp.utils.train_and_test(Assays(), rows, rows, rows, settings, types.SimpleNamespace(
        experiment_id="0", run_id="0"), verbose=False)
except Done:
    pass
"""

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
    **{
        f"TNC {title}": Member("TNC_representation_learning", TNC + how, [(file, form, scale, "")], command)
        for title, how, file, form, scale, command in (
            ("neighbors", NEIGHBORS, "tnc.py", UNKNOWN, 0.0, ""),
            ("CPC", PREDICTIVE, "cpc.py", IN, 1.0, ANY),
            ("triplet", TRIPLET, "triplet_loss.py", "binary", 0.0, ""),
        )
    },
    **{
        f"tortoise {title}": Member("tortoise-tts", LOOP + TORTOISE + how, [(file, IN, 2.718, "diagonal")] * 2, ANY)
        for title, how, file in (("CLVP", SPEECH, "clvp.py"), ("CVVP", VOICES, "cvvp.py"))
    },
    **{
        f"clip-fields{title}": Member(
            "clip-fields", LOOP + FIELDS + how, [("grid_hash_model.py", IN, 14.286, "diagonal")] * 2, ANY
        )
        for title, how in (("", ROOMS), (", plain", POINTS))
    },
    **{
        f"clamp {kind}": Member("clamp", CLAMP % kind, [("utils.py", form, scale, "")] * n, command)
        for kind, form, scale, n, command in (
            ("Con", IN, 1.0, 2, ANY),
            ("CE", IN, 0.2887, 1, ANY),
            ("BCE", UNKNOWN, 0.0, 1, ""),
        )
    },
}
