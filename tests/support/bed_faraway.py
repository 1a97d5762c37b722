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

MFLVC = """
import loss
import network
torch.manual_seed(0)
model, criterion = network.Network(3, [10, 10, 10], 24, 16, 5, "cpu"), loss.Loss(12, 5, 0.5, 1.0, "cpu")


def contrast():
    views = torch.randn(3, 12, 10)
    features, clusters, decoded, _ = model(views)
    terms = [F.mse_loss(decoded[v], views[v]) for v in range(3)]
    for v in range(3):
        for w in range(v + 1, 3):
            terms += [%s]
    return sum(terms)


loop(contrast, model.parameters())
"""
VIEWS, CLUSTERS = (
    "criterion.forward_feature(features[v], features[w])",
    "criterion.forward_label(clusters[v], clusters[w])",
)

SPCL = """
for name in ("spcl", "spcl.models", "spcl.utils"):
    package(name, name.replace(".", "/"))
from spcl.models.hm import HybridMemory
from spcl.trainers import SpCLTrainer_UDA, SpCLTrainer_USL
torch.cuda.device_count = lambda: 1
torch.manual_seed(0)
memory = HybridMemory(16, 40)
memory.features, memory.labels = norm(torch.randn(40, 16)), torch.cat([torch.arange(6), torch.arange(34) // 3 + 6])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3 * 8 * 4, 16)

    def forward(self, x):
        return norm(self.net(x.flatten(1)))


class Batches:
    def __init__(self, size):
        self.size = size

    def next(self):
        return torch.randn(12, 3, 8, 4), None, torch.randint(6, (12,)), None, torch.randint(self.size, (12,))


encoder = Encoder()
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
%s
"""

BLINK = """
names = ("modeling_utils", "modeling_bert", "modeling_roberta", "tokenization_bert", "tokenization_roberta")
absent("pytorch_transformers", *(f"pytorch_transformers.{name}" for name in names))
for name in ("blink", "blink.common", "elq", "elq.common", "elq.biencoder"):
    package(name, name.replace(".", "/"))
absent(*(f"{name}.common.{part}" for name in ("blink", "elq") for part in ("ranker_base", "optimizer")))
absent("elq.biencoder.utils", "elq.biencoder.allennlp_span_utils")
torch.manual_seed(0)
words = lambda *shape: torch.randint(1, 30, shape)


class Words(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.words, self.net = nn.Embedding(30, 24), nn.Linear(24, width)

    def forward(self, ids):
        return self.net(self.words(ids).mean(-2))


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.context, self.candidates, self.scores = Words(), Words(), Words(1)

    def forward(self, context, _, __, candidates=None, *___, **options):
        context = None if context is None else self.%s(context)
        return context, None if candidates is None else self.candidates(candidates)


def build(cls):
    ranker = object.__new__(cls)
    nn.Module.__init__(ranker)
    ranker.model, ranker.device, ranker.NULL_IDX = Ranker(), "cpu", 0
    return ranker


"""
BIENCODER = """
ranker = build(load("blink/biencoder/biencoder.py", "blink_biencoder").BiEncoderRanker)
loop(lambda: ranker(words(12, 7), words(12, 9), %s)[0], ranker.parameters())
"""
CROSS = """
ranker = build(load("blink/crossencoder/crossencoder.py", "blink_crossencoder").CrossEncoderRanker)


class Joint(Words):
    def forward(self, ids, segments, mask):
        return super().forward(ids)


ranker.model = Joint(1)
loop(lambda: ranker(words(12, 5, 9), torch.randint(5, (12,)), 4)[0], ranker.parameters())
"""
MENTIONS = """
def spans(self, ids):
    reps = torch.stack([self.context(ids), self.context(ids.flip(1)[:, :4])], 1).flatten(0, 1)
    bounds = torch.tensor([[0, 2], [3, 4], [5, 6], [1, 1]]).expand(6, 4, 2)
    scores = self.scores(ids.unsqueeze(1).expand(-1, 4, -1)).squeeze(-1)
    return dict(mention_dims=torch.tensor([[6, 2]]), mention_reps=reps, mention_masks=torch.ones(12).bool(),
                all_mention_logits=scores, all_mention_bounds=bounds)


Ranker.spans = spans
ranker = build(load("elq/biencoder/biencoder.py", "elq_biencoder").BiEncoderRanker)
gold = lambda: dict(gold_mention_bounds=torch.tensor([[0, 2], [5, 6]]).expand(6, 2, 2).clone(),
                    gold_mention_bounds_mask=torch.ones(6, 2).bool())
entities = torch.randn(40, 16)


def hard():
    rows = torch.randint(40, (6, 2))
    return dict(cand_encs=entities[rows], label_input=torch.rand(6, 2) < 0.3, hard_negs_mask=torch.ones(6, 2).bool(),
                text_encs=ranker.encode_context(words(6, 8))["mention_reps"])


loop(lambda: ranker(words(6, 8), words(6, 2, 1, 9), **gold()%s)[0], ranker.parameters())
"""

VISSL = """
import logging
rank = dict(get_rank=lambda: 0, get_cuda_device_index=lambda: -1, gather_from_all=lambda x: x)
for name in ("classy_vision", "classy_vision.generic"):
    stub(name)
stub("classy_vision.generic.distributed_util", all_reduce_mean=lambda x: x, convert_to_distributed_tensor=None,
     convert_to_normal_tensor=None, is_distributed_training_run=lambda: False, **rank)
stub("classy_vision.generic.util", is_pos_int=lambda n: n > 0)
stub("classy_vision.losses", ClassyLoss=nn.Module, register_loss=lambda name: lambda cls: cls)
for name in ("vissl", "vissl.losses", "vissl.utils", "vissl.config"):
    package(name, name.replace(".", "/"))
from vissl.config.attr_dict import AttrDict
sys.modules["vissl.config"].AttrDict = AttrDict
stub("vissl.utils.misc", concat_all_gather=lambda x: x)
buffers = dict(world_size=1, embedding_dim=16)
bank = dict(norm_embedding=True, temperature=0.07, norm_constant=-1, num_train_samples=60, ignore_index=-1,
            negative_sampling_params=dict(num_negatives=20, type="random"))
"""
SIMCLR = """
from vissl.losses.simclr_info_nce_loss import SimclrInfoNCELoss
criterion = SimclrInfoNCELoss(AttrDict(dict(temperature=0.1, buffer_params=dict(effective_batch_size=24, **buffers))))
train(lambda a, b: criterion(torch.cat([a, b]), None))
"""
CROPS = """
from vissl.losses.multicrop_simclr_info_nce_loss import MultiCropSimclrInfoNCELoss
criterion = MultiCropSimclrInfoNCELoss(AttrDict(dict(
    temperature=0.1, num_crops=4, buffer_params=dict(effective_batch_size=6, **buffers))))
train(lambda a, b: criterion(torch.cat([a, b]), None))
"""
MOCO = """
from vissl.losses.moco_loss import MoCoLoss, MoCoLossConfig
criterion = MoCoLoss(MoCoLossConfig(embedding_dim=16, queue_size=48, momentum=0.999, temperature=0.2))


def contrast(a, b):
    criterion.key = norm(b).detach()
    return criterion(a)


train(contrast)
"""
BANK = """
from vissl.losses.nce_loss import NCELossWithMemory
bank["memory_params"] = dict(embedding_dim=16, momentum=0.5, norm_init=True, update_mem_on_forward=%s)
criterion = NCELossWithMemory(AttrDict(dict(loss_type=%r, loss_weights=%s, update_mem_with_emb_index=%d, **bank)))
train(lambda a, b: criterion(%s, torch.randperm(60)[:12]))
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
                [("dim_losses.py", IN, 1.0, "column 0")],
                ANY,
            ),
        )
    },
    **{
        f"TNC {title}": Member(
            "TNC_representation_learning", TNC + how, [(file, form, scale, "")] * (1 + (title == "triplet")), command
        )
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
    **{
        f"MFLVC{title}": Member(
            "MFLVC", LOOP + MFLVC % terms, [("loss.py", IN, scale, "column 0") for scale in scales], ANY
        )
        for title, terms, scales in (
            (" features", VIEWS, (2.0,)),
            (" clusters", CLUSTERS, (1.0,)),
            ("", f"{VIEWS}, {CLUSTERS}", (2.0, 1.0)),
        )
    },
    **{
        f"SpCL {title}": Member("SpCL", SPCL % how, [("hm.py", UNKNOWN, 0.0, "")], "", words=CPU)
        for title, how in (
            ("USL", "SpCLTrainer_USL(encoder, memory).train(0, Batches(40), optimizer, train_iters=6)"),
            ("UDA", "SpCLTrainer_UDA(encoder, memory, 6).train(0, Batches(9), Batches(34), optimizer, train_iters=6)"),
        )
    },
    **{
        f"BLINK {title}": Member("BLINK", LOOP + BLINK % context + how, losses, command)
        for title, context, how, losses, command in (
            ("biencoder", "context", BIENCODER % "None", [("biencoder.py", IN, 1.0, "diagonal")], ANY),
            (
                "biencoder, hard",
                "context",
                BIENCODER % "(torch.rand(12) < 0.3).float()",
                [("biencoder.py", "binary", 0.0, "")],
                "",
            ),
            ("crossencoder", "context", CROSS, [("crossencoder.py", UNKNOWN, 0.0, "")], ""),
            ("ELQ", "spans", MENTIONS % "", [("biencoder.py", IN, 1.0, "diagonal")], ANY),
            ("ELQ, hard", "spans", MENTIONS % " | hard()", [("biencoder.py", "binary", 0.0, "")], ""),
        )
    },
    **{
        f"vissl {title}": Member("vissl", VISSL + how, [(f"{file}_loss.py", form, scale, "")], command)
        for title, how, file, form, scale, command in (
            ("SimCLR", SIMCLR, "simclr_info_nce", IN, 10.0, ANY),
            ("SimCLR, crops", CROPS, "multicrop_simclr_info_nce", IN, 10.0, ANY),
            ("MoCo", MOCO, "moco", IN, 5.0, ANY),
            ("PIRL", BANK % (False, "cross_entropy", [0.5, 0.5], 0, "[a, b]"), "nce", IN, 14.286, ANY),
            ("NPID", BANK % (True, "nce", [1.0], 0, "a"), "nce", UNKNOWN, 0.0, ""),
        )
    },
}
