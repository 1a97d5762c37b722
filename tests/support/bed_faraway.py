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


settings = dict(model="MLPLayerNorm", compound_layer_sizes=[24], assay_layer_sizes=[24], embedding_size=16,
                epoch_max=1, batch_size=12, dropout_input=0.1, dropout_hidden=0.1, l2=0.0005, patience=3,
                lr_ini=0.001, optimizer="AdamW", loss_fun=%r, beta=1)
rows = np.arange(72)
try:
    clamp.utils.train_and_test(Assays(), rows, rows, rows, settings, types.SimpleNamespace(
        experiment_id="0", run_id="0"), verbose=False)
except Done:
    pass
"""

CONTRACLM = """
import pytorch_lightning
import transformers.optimization
import transformers.trainer_pt_utils
from transformers import AutoModelForCausalLM, GPT2LMHeadModel
absent("GPUtil", "deepspeed", "deepspeed.ops", "deepspeed.ops.adam")
import contrastive_losses
import pl_model
torch.manual_seed(0)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.net, self.head = nn.Embedding(30, 16), nn.Linear(16, 16), nn.Linear(16, 30)

    def forward(self, input_ids, output_hidden_states):
        states = self.net(F.dropout(self.words(input_ids), 0.1))
        return types.SimpleNamespace(logits=self.head(states), hidden_states=[states])


class Own(pl_model.LitContraCLM):
    def __init__(self):
        super(pl_model.LitContraCLM, self).__init__()
        self.model, self.mle_loss, self.vocab_size, self.pad_token_id = Words(), nn.CrossEntropyLoss(), 30, 29
        self.loss, self.world_size, self.functional_dropout = %r, 1, False
        self.loss_func_tok = contrastive_losses.ContraCLMTokLoss(29)
        self.loss_func_seq = contrastive_losses.ContraCLMSeqLoss(29)

    def log(self, *_, **__):
        pass


model = Own()
loop(lambda: model.training_step({"input_ids": torch.randint(30, (6, 10))}, 0), model.parameters())
"""

SEASONS = """
stub("pl_bolts"), stub("pl_bolts.metrics", precision_at_k=lambda *_, **__: [0.0])
seasons = load("models/moco2_module.py", "seco")
torch.manual_seed(0)


class Own(seasons.MocoV2):
    use_ddp = use_ddp2 = False

    def log_dict(self, *_, **__):
        pass


spaces = %d
model = Own("resnet18", 16, 48, spaces, encoder_momentum=0.99, softmax_temperature=0.07)
pictures = lambda: torch.randn(12, 3, 32, 32)
loop(lambda: model.training_step((pictures(), [pictures() for _ in range(spaces)]), 0),
     [p for p in model.parameters() if p.requires_grad])
"""

CHEXZERO = """
absent("h5py", "clip", "simple_tokenizer", "zero_shot", "matplotlib", "matplotlib.pyplot")
chest = load("run_train.py", "chexzero")
torch.manual_seed(0)
model = chest.CLIP(embed_dim=16, image_resolution=32, vision_layers=1, vision_width=64, vision_patch_size=16,
                   context_length=12, vocab_size=30, transformer_width=64, transformer_heads=1, transformer_layers=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001, momentum=0.9)
for _ in range(6):
    pictures, reports = torch.randn(12, 3, 32, 32), torch.randint(30, (12, 12))
    chest.train_batch(pictures, reports, model, "cpu", nn.CrossEntropyLoss(), optimizer)
"""

POINTCONTRAST = """
import numpy as np
import torch.utils.data.sampler
package("lib", "pretrain/pointcontrast/lib"), absent("tensorboardX", "model", "lib.multiprocessing")


class Sparse:
    def __init__(self, F, coords):
        self.F = F

    def to(self, device):
        return self


stub("MinkowskiEngine", SparseTensor=Sparse)
points = load("pretrain/pointcontrast/lib/ddp_trainer.py", "lib.ddp_trainer")
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(10, 16)

    def forward(self, x):
        return types.SimpleNamespace(F=norm(self.net(x.F)))


class Batches:
    def next(self):
        pairs = torch.stack([torch.arange(40) // 2, torch.randperm(40)], 1)
        clouds = {f"sinput{i}_F": torch.randn(40, 10) for i in (0, 1)} | {"sinput0_C": None, "sinput1_C": None}
        return clouds | {"pcd0": np.zeros((40, 3)), "pcd1": np.zeros((40, 3)), "correspondences": pairs}


trainer = object.__new__(points.%sLossTrainer)
options = types.SimpleNamespace(num_pos_per_batch=16, num_hn_samples_per_batch=16)
vars(trainer).update(model=Net(), T=0.07, npos=16, cur_device="cpu", batch_size=1, pos_thresh=0.1, neg_thresh=1.4,
                     config=types.SimpleNamespace(misc=types.SimpleNamespace(num_gpus=1), trainer=options))
trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.05, momentum=0.8)
for _ in range(6):
    trainer._train_iter(Batches(), [points.AverageMeter(), points.Timer(), points.Timer()])
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
    **{
        f"ContraCLM{title}": Member("ContraCLM", LOOP + CONTRACLM % kind, losses, ANY)
        for title, kind, losses in (
            (" tokens", "ContraCLMTok", [("contrastive_losses.py", IN, 20.0, "")]),
            (" sequences", "ContraCLMSeq", [("contrastive_losses.py", IN, 20.0, "")]),
            ("", "ContraCLM", [("contrastive_losses.py", IN, 20.0, "")] * 2),
        )
    },
    **{
        f"seasonal-contrast{title}": Member(
            "seasonal-contrast", LOOP + SEASONS % n, [("moco2_module.py", IN, 14.286, "column 0")], ANY
        )
        for title, n in (("", 3), (", one space", 1))
    },
    "CheXzero": Member("CheXzero", CHEXZERO, [("run_train.py", IN, 14.286, "diagonal")] * 2, ANY),
    **{
        f"PointContrast {title}": Member("PointContrast", POINTCONTRAST % kind, losses, ANY, words=CPU)
        for title, kind, losses in (
            ("NCE", "PointNCE", [("criterion.py", IN, 14.286, "diagonal")]),
            ("hardest", "HardestContrastive", [("ddp_trainer.py", UNKNOWN, 0.0, "")]),
        )
    },
}
