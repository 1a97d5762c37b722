"""Texts with images, passages, tables, sounds, items, molecules, code, videos and hypergraphs, of random data."""

from __future__ import annotations

from bed import ALONE, IN, LIGHTNING, LOOP, UNKNOWN, Member

ANY, CPU = "inject", ("--shims", "cpu")  # any road; `.cuda()` does nothing

CHINESE = """
package("cn_clip", "cn_clip"), package("cn_clip.clip", "cn_clip/clip"), absent("cn_clip.clip.model")
training = load("cn_clip/training/train.py", "cn_clip_train")
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(10, 16), nn.Linear(10, 16)
        self.logit_scale, self.module = nn.Parameter(torch.tensor(2.6593)), [self]

    def forward(self, images, texts, mask_ratio=0):
        return norm(self.image(images)), norm(self.text(texts)), self.logit_scale.exp()


model = Model()
model.module = types.SimpleNamespace(logit_scale=model.logit_scale)
batches = [(torch.randn(12, 10), torch.randn(12, 10), torch.zeros(12)) for _ in range(12)]


class Loader(list):
    num_batches, num_samples = len(batches), 144


data = {"train": types.SimpleNamespace(dataloader=Loader(batches), sampler=None)}
args = types.SimpleNamespace(accum_freq=%d, aggregate=%s, gather_with_grad=False, distillation=False, mask_ratio=0,
                             local_device_rank=0, report_training_batch_acc=True, freeze_vision=False, max_steps=100,
                             precision="fp32", rank=0, log_interval=2, world_size=1, val_data=None, should_save=False)
training.train(model, data, 0, torch.optim.SGD(model.parameters(), 0.05), None, lambda step: None, args, 0)
"""

CYCLIP = """
absent("wandb")
trainer = load("src/train.py", "cyclip_train")
model, criterion = learned(2.6593), nn.CrossEntropyLoss()
options = types.SimpleNamespace(distributed=False, device="cpu", inmodal=%s, cylambda1=%s, cylambda2=%s)
images, texts = nn.Linear(16, 16), nn.Linear(16, 16)
train(lambda a, b: trainer.get_loss(model, types.SimpleNamespace(image_embeds=norm(images(a)),
                                    text_embeds=norm(texts(b))), criterion, options)[0], modules=[model, images, texts])
"""

DENSE = """
from transformers import BertConfig
package("densephrases", "densephrases")
from densephrases.encoder import Encoder
torch.manual_seed(0)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(60, 16)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        return (self.words(input_ids).cumsum(1).tanh(),)


model = Encoder(BertConfig(hidden_size=16), None, pretrained=Tokens(), lambda_neg=1.0, lambda_flt=%s)
%s
ids = lambda n: torch.randint(2, 60, (12, n))
ones = lambda n: torch.ones(12, n, dtype=torch.long)
loop(lambda: model(ids(9), ones(9), ones(9), ids(5), ones(5), ones(5), *torch.randint(1, 9, (2, 12)))[0],
     model.parameters())
"""

ANCE = """
nothing = type("Nothing", (nn.Module,), {})
stub("model.SEED_Encoder", SEEDEncoderConfig=nothing, SEEDTokenizer=nothing, SEEDEncoderForMaskedLM=nothing,
     SEEDEncoderForSequenceClassification=nothing)
absent("utils", "utils.lamb", "utils.util", "utils.dpr_utils", "data", "data.DPR_data")
absent("data.process_fn", "pandas"), package("model", "model")
torch.multiprocessing.set_sharing_strategy = lambda name: None
models = load("model/models.py", "model.models")
vars(sys.modules["transformers"]).update(AdamW=torch.optim.AdamW, glue_processors=None)
torch.manual_seed(0)
ids, ones = (lambda n=12: torch.randint(2, 60, (n, 6))), torch.ones(12, 6)
words, bodies = nn.Embedding(60, 16), nn.Embedding(60, 16)
"""

SAINT = """
from torch.utils.data import TensorDataset
stub("baselines"), stub("baselines.data_openml", data_prep_openml=None, task_dset_ids=None, DataSetCatCon=None)
from models.pretrainmodel import SAINT
pretraining = load("pretraining.py", "saint_pretraining")
torch.manual_seed(0)
categories = torch.randint(0, 5, (72, 4))
masks = torch.ones(72, 4).long(), torch.ones(72, 3).long()
tables = TensorDataset(categories, torch.randn(72, 3), categories[:, :1], *masks)
pretraining.DataSetCatCon = lambda *_: tables
pretraining.DataLoader = lambda data, batch_size, **_: torch.utils.data.DataLoader(data, batch_size)
model = SAINT(categories=(5, 5, 5, 5), num_continuous=3, dim=8, depth=1, heads=2, cont_embeddings="MLP",
              attentiontype="col", final_mlp_style="sep", y_dim=2, dim_out=1)
opt = types.SimpleNamespace(dtask="clf", batchsize=12, vision_dset=False, pt_aug=["cutmix"], pt_aug_lam=0.3,
                            pretrain_epochs=1, pt_tasks=%r, pt_projhead_style="diff", nce_temp=0.7, lam0=0.5, lam1=10,
                            lam2=1, lam3=10, mixup_lam=0.3)
pretraining.SAINT_pretrain(model, None, None, None, None, opt, "cpu")
"""

COLA = (
    """
absent("efficientnet_pytorch")
"""
    + LIGHTNING.replace("lightning.pytorch", "pytorch_lightning")
    + """
encoders = load("audio_encoder/encoder.py", "cola")
encoders.Encoder = lambda drop_connect_rate: nn.Sequential(nn.Flatten(), nn.Linear(60, 1280), nn.ReLU())
torch.manual_seed(0)
fit(encoders.Cola(), [(torch.randn(12, 6, 10), torch.randn(12, 6, 10)) for _ in range(6)])
"""
)

SPEECH = """
absent("preprocess")
cpc = load("model.py", "vqcpc")
torch.manual_seed(0)
criterion = cpc.CPCLoss(3, 4, 6, 5, 16, 12)
frames, context = nn.Linear(10, 16), nn.GRU(16, 12, batch_first=True)


def loss():
    z = frames(torch.randn(12, 14, 10))
    return criterion(z, context(z)[0])[0]


loop(loss, [*frames.parameters(), *context.parameters(), *criterion.parameters()])
"""

RECHORUS = """
sys.path.insert(0, CLONE + "/src")
absent("helpers", "helpers.BaseReader", "utils.utils"), package("utils", "src/utils"), package("models", "src/models")
from models.%s import %s as Model
torch.manual_seed(0)
args = types.SimpleNamespace(device="cpu", model_path="", buffer=1, emb_size=16, history_max=8, num_neg=1, dropout=0,
                             test_all=0, gamma=1, beta_a=3, beta_b=3, ctc_temp=1, ccc_temp=0.2, encoder="BERT4Rec",
                             temp=0.2)
model = Model(args, types.SimpleNamespace(n_users=20, n_items=60))
items = lambda *shape: torch.randint(1, 60, shape)


def loss():
    history = {name: items(12, 8) for name in ("history_items", "history_items_a", "history_items_b")}
    feed = {"item_id": items(12, 4), "lengths": torch.randint(2, 9, (12,)), "phase": "train", **history}
    return model.loss(model(feed))


loop(loss, model.parameters())
"""

MOLECULES = """
absent("rdkit", "rdkit.Chem", "rdkit.Chem.AllChem")
sys.path.insert(0, CLONE)
weighted, plain = load("utils/weighted_nt_xent.py", "weighted_nt_xent"), load("utils/nt_xent.py", "nt_xent")
weighted.DataStructs.TanimotoSimilarity = lambda a, b: float(torch.rand(()))
whole, parts = (m("cpu", 0.1, True) for m in (weighted.WeightedNTXentLoss, plain.NTXentLoss))
molecules = range(12)
"""

CODE = """
absent("horovod", "horovod.torch", "fire", "sentencepiece", "wandb", "loguru", "models", "models.code_mlm", "utils")
absent("representjs", "data", "data.precomputed_dataset", "models.encoder")
stub("models.code_moco", CodeMoCo=None)
moco = load("representjs/models/code_moco.py", "code_moco")
pretrain = load("representjs/pretrain_distributed.py", "pretrain_distributed")
pretrain.accuracy = lambda *_, topk: [torch.zeros(1)] * 2


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(60, 16)

    def forward(self, ids, lengths):
        return self.words(ids).mean(1)


moco.CodeMoCo.make_encoder = lambda self, **_: Toy()
torch.manual_seed(0)
model = moco.CodeMoCo(60, d_rep=16, K=48)
step = lambda: pretrain.training_step(nn.parallel.DistributedDataParallel(model), batch())["loss"]
batch = lambda: (torch.randint(0, 60, (12, 2, 8)), torch.full((12, 2), 8), None)
loop(step, model.encoder_q.parameters())
"""

LOVT = """
sys.path.insert(0, CLONE + "/src")
package("models", "src/models"), package("models.objectives", "src/models/objectives"), package("common", "src/common")
stub("metrics"), stub("metrics.classification_metrics", TopKAccuracy=lambda topk: lambda logits, labels: {})
stub("common.config_utils", prepare_config=lambda config, *_: config)
"""

LOVT_GLOBAL = """
from models.objectives.global_alignment import GlobalNceLoss, GlobalNceLossConfig
criterion = GlobalNceLoss(GlobalNceLossConfig(%s))
train(lambda a, b: sum(criterion(a, b)[:2]) / 2, modules=[criterion])
"""

LOVT_LOCAL = """
from models.objectives.local_alignment import (LocalIntraSampleContrastiveLoss as Local,
                                               LocalIntraSampleContrastiveLossConfig as Config)
criterion = Local(Config(%s), (3, 3))
regions = nn.Linear(16, 9 * 8)
train(lambda a, b: sum(criterion(*(regions(z).view(12, 9, 8) for z in (a, b)), structure_size=(3, 3))),
      modules=[regions])
"""

DPC = """
absent("tensorboardX", "dataset_3d", "augmentation", "matplotlib", "matplotlib.pyplot", "cv2")
stub("utils", AverageMeter=None, save_checkpoint=None, denorm=None, calc_topk_accuracy=lambda *_: torch.zeros(3))
sys.path[:0] = [CLONE + "/backbone", CLONE + "/dpc"]
os.makedirs("dpc", exist_ok=True), os.chdir("dpc")  # it takes the other folders from here
sys.path.insert(0, CLONE + "/backbone")
import select_backbone
backbone = nn.Sequential(nn.Conv3d(3, 16, (2, 8, 8), (1, 8, 8)))
select_backbone.select_resnet = lambda *_, **__: (backbone, {"feature_size": 16})
sys.argv[1:] = ["--img_dim", "16"]
main = load("dpc/main.py", "dpc_main")


class Meter:
    local_avg = val = 0

    def update(self, *_):
        pass


torch.manual_seed(0)
main.AverageMeter, main.criterion, main.iteration, main.cuda = Meter, nn.CrossEntropyLoss(), 0, "cpu"
main.de_normalize, main.writer_train, main.args = None, sys.modules["tensorboardX"], main.parser.parse_args()
main.vutils.make_grid, main.de_normalize = lambda *_, **__: None, lambda x: x
contiguous, main.process_output = main.process_output, lambda mask: contiguous(mask.contiguous())  # for today's torch
model = main.DPC_RNN(sample_size=64, num_seq=6, seq_len=5, pred_step=2)
data = [torch.randn(3, 6, 3, 3, 16, 16) for _ in range(4)]
main.train(data, model, torch.optim.SGD(model.parameters(), 0.05), 0)
"""

TRICL = """
absent("torch_scatter", "TriCL.layers"), package("TriCL", "TriCL")
models = load("TriCL/models.py", "TriCL.models")
toy = types.SimpleNamespace(node_dim=16, edge_dim=16)


class Encoder(nn.Module):
    node_dim = edge_dim = 16

    def reset_parameters(self):
        pass


model = models.TriCL(Encoder(), 16)
members = torch.stack([torch.randint(0, 12, (30,)), torch.randint(0, 12, (30,))])
nodes = lambda a, b, **how: model.node_level_loss(model.node_projection(a), model.node_projection(b), 0.5, **how)
"""

MCL = """
losses = load("losses/cifar_sup_mcl_loss.py", "mcl_losses")
args = types.SimpleNamespace(number_net=2, feat_dim=16, rep_dim=[16, 16], tau=0.1, kd_T=3)
criterion, labels = losses.Sup_MCL_Loss(args), torch.arange(12) % 4
"""

MCL_MOCO = """
builder = load("moco/builder_mcl.py", "builder_mcl")
torch.manual_seed(0)
model = builder.MoCo(lambda num_classes: nn.Linear(10, num_classes), dim=16, K=48)
loop(lambda: sum(model(torch.randn(12, 10), torch.randn(12, 10))[i] for i in %s), model.parameters())
"""

LLAVE = """
absent("llava", "llava.utils")
criterion, scale = load("llava/model/language_model/loss.py", "llave").WeightedClipLoss(), %s
train(lambda a, b: criterion(norm(a), norm(b), scale.logit_scale.exp(), alpha=%s)%s)
"""

CORRO = """
sys.path.insert(0, CLONE)
absent("utils", "utils.config_utils", "utils.helpers", "utils.offline_utils", "offline_rl_config", "sklearn", "models")
absent("models.encoder", "algorithms", "algorithms.dqn", "algorithms.sac", "models.generative", "environments")
absent("environments.make_env", "torchkit", "torchkit.pytorch_utils", "torchkit.networks", "data_management")
absent("data_management.storage_policy", "utils.evaluation", "utils.tb_logger", "models.policy")
absent("matplotlib", "matplotlib.pyplot")
stub("offline_learner", OfflineMetaLearner=object)
corro = load("train_contrastive_no_generative.py", "corro")
corro.ptu.device = "cpu"
torch.manual_seed(0)
learner = object.__new__(corro.OfflineContrastive)
transition = lambda *shape: [torch.randn(*shape, n) for n in (4, 2, 1, 4, 1)]


class Encoder(nn.Linear):
    def forward(self, *parts):
        return super().forward(torch.cat(parts, -1))


learner.args = types.SimpleNamespace(rl_updates_per_iter=8, log_train_time=False, contrastive_batch_size=12,
                                     n_negative_per_positive=5, infonce_temp=0.1,
                                     use_additional_task_info=False)
learner.encoder = Encoder(11, 16)
learner.encoder_optimizer = torch.optim.SGD(learner.encoder.parameters(), 0.05)
learner.sample_positive_pairs = lambda n: (transition(n), transition(n))
learner.create_negatives = lambda obs, actions, n: transition(len(obs), n)
learner._n_rl_update_steps_total = 0
learner.update([0])
"""

MEMBERS = {
    **{
        f"Chinese-CLIP{title}": Member(
            "Chinese-CLIP", code + CHINESE % how, [("train.py", IN, 14.286, "")] * 2, ANY, words=CPU
        )
        for title, code, how in (
            ("", "", (1, False)),
            (", gathered", ALONE, (1, True)),
            (", accumulated", "", (2, False)),
        )
    },
    **{
        f"CyCLIP{title}": Member("CyCLIP", CYCLIP % options, [("train.py", IN, 14.286, "")] * n, command)
        for title, options, n, command in (
            (", CLIP", (False, 0, 0), 2, ANY),
            (", in modality", (True, 0, 0), 4, ANY),
            (", cyclic", (False, 0.25, 0.25), 2, ""),
        )
    },
    **{
        f"DensePhrases{title}": Member(
            "DensePhrases", LOOP + DENSE % options, [("encoder.py", IN, 1.0, "")] * 4, command, words=CPU
        )
        for title, options, command in (
            ("", (0.0, ""), ""),
            (", pre-batch", (0.0, "model.init_pre_batch(2)"), ""),
            (", filter", (1.0, ""), ""),
        )
    },
    "ANCE, triples": Member(
        "ANCE",
        LOOP
        + ANCE
        + "owner = models.NLL(None)\n"
        + "owner.query_emb, owner.body_emb = lambda i, m: words(i).mean(1), lambda i, m: bodies(i).mean(1)\n"
        + "loop(lambda: owner.forward(ids(), ones, ids(), ones, ids(), ones)[0],"
        + " [*words.parameters(), *bodies.parameters()])\n",
        [("models.py", IN, 1.0, "column 0")],
        ANY,
    ),
    "ANCE, DPR": Member(
        "ANCE",
        LOOP
        + ANCE
        + 'drivers = load("drivers/run_ann_dpr.py", "run_ann_dpr")\n'
        + "drivers.all_gather_list = lambda data, max_size: [data]\n"
        + "args = types.SimpleNamespace(device='cpu', local_rank=0, n_gpu=1, gradient_accumulation_steps=2)\n"
        + "model = lambda query_ids, attention_mask_q, input_ids_a, attention_mask_a: "
        + "(words(query_ids).mean(1), bodies(input_ids_a).mean(1))\n"
        + "batch = lambda: (ids(24), ids(24), ids(24), ids(24), ids(24))\n"
        + "loop(lambda: drivers.do_biencoder_fwd_pass(args, model, batch())[0],"
        + " [*words.parameters(), *bodies.parameters()])\n",
        [("run_ann_dpr.py", IN, 1.0, "")],
        ANY,
    ),
    **{
        f"saint{title}": Member("saint", SAINT % tasks, losses, command, needs=("einops",))
        for title, tasks, losses, command in (
            ("", ["contrastive"], [("pretraining.py", IN, 1.4286, "diagonal")] * 2, ANY),
            (", denoising", ["contrastive", "denoising"], [("pretraining.py", IN, 1.4286, "diagonal")] * 2, ANY),
        )
    },
    "COLA": Member("COLA_pytorch", COLA, [("encoder.py", IN, 1.0, "diagonal")], ANY, needs=("pytorch_lightning",)),
    "VectorQuantizedCPC": Member("VectorQuantizedCPC", LOOP + SPEECH, [("model.py", IN, 0.25, "column 0")], ANY),
    "ReChorus CLRec": Member(
        "ReChorus", LOOP + RECHORUS % ("developing.CLRec", "CLRec"), [("CLRec.py", IN, 5.0, "diagonal")], ANY
    ),
    "ReChorus ContraRec": Member(
        "ReChorus",
        LOOP + RECHORUS % ("sequential.ContraRec", "ContraRec"),
        [("ContraRec.py", "supcon", 5.0, ""), ("ContraRec.py", IN, 1.0, "column 0")],
    ),
    **{
        f"iMolCLR{title}": Member("iMolCLR", MOLECULES + f"train(lambda a, b: {loss})\n", losses, command)
        for title, loss, losses, command in (
            (", fragments", "parts(norm(a), norm(b))", [("nt_xent.py", IN, 10.0, "")], ANY),
            (", molecules", "whole(norm(a), norm(b), molecules)", [("weighted_nt_xent.py", IN, 1.0, "")], ANY),
            (
                "",
                "whole(norm(a), norm(b), molecules) + 0.5 * parts(norm(a + b), norm(a - b))",
                [("nt_xent.py", IN, 10.0, ""), ("weighted_nt_xent.py", IN, 1.0, "")],
                ANY,
            ),
        )
    },
    "contracode": Member(
        "contracode", ALONE + LOOP + CODE, [("pretrain_distributed.py", IN, 14.286, "column 0")], ANY, words=CPU
    ),
    **{
        f"lovt {title}": Member("lovt", LOVT + code % options, losses, command)
        for title, code, options, losses, command in (
            ("global", LOVT_GLOBAL, "", [("global_alignment.py", IN, 10.0, "")] * 2, ANY),
            (
                "global, learned",
                LOVT_GLOBAL,
                "temperature_trainable=True, negatives_from_same_modality=False",
                [("global_alignment.py", IN, 10.0, "")] * 2,
                ANY,
            ),
            ("local", LOVT_LOCAL, "", [("local_alignment.py", UNKNOWN, 0.0, "")], ""),
            (
                "local, one positive",
                LOVT_LOCAL,
                "distance_threshold=0.1",
                [("local_alignment.py", UNKNOWN, 0.0, "")],  # both directions of InfoNCE, of batches of products
                "",
            ),
        )
    },
    "DPC": Member("DPC", DPC, [("main.py", IN, 1.0, "")], ANY, words=CPU),
    **{
        f"TriCL{title}": Member("TriCL", TRICL + f"train(lambda a, b: {loss}, modules=[model])\n", losses, command)
        for title, loss, losses, command in (
            ("", "nodes(a, b)", [("models.py", IN, 2.0, "diagonal")], ANY),
            (", batches", "nodes(a, b, batch_size=4)", [("models.py", IN, 2.0, "others in each call")], ANY),
            (", sampled", "nodes(a, b, num_negs=5)", [("models.py", UNKNOWN, 0.0, "")], ""),  # also InfoNCE
            (
                ", members",
                "nodes(a, b) + model.membership_level_loss(a, b, members, 0.5)",
                [("models.py", IN, 0.0, "")],
                "",
            ),
        )
    },
    **{
        f"MCL{title}": Member(
            "MCL", MCL + f"train(lambda a, b: {loss}, modules=[criterion])\n", losses, command, words=CPU
        )
        for title, loss, losses, command in (
            (", one network's", "criterion([a, b], labels)[0]", [("cifar_sup_mcl_loss.py", "supcon", 10.0, "")], ANY),
            (  # a KL divergence of the same logits is added
                ", whole",
                "sum(criterion([a, b], labels))",
                [("cifar_sup_mcl_loss.py", UNKNOWN, 0.0, "")],
                "",
            ),
        )
    },
    **{
        f"MCL MoCo{title}": Member(
            "MCL", ALONE + LOOP + MCL_MOCO % terms, [("builder_mcl.py", IN, 14.286, "column 0")] * 3, command, words=CPU
        )
        for title, terms, command in (("", "(2, 4)", ANY), (", soft", "(2, 3, 4, 5)", ""))
    },
    **{
        f"LLaVE{title}": Member("LLaVE", LLAVE % (scale, alpha, end), losses, command)
        for title, scale, alpha, end, losses, command in (
            ("", "learned(2.6593)", 9.0, ", modules=[scale]", [("loss.py", IN, 14.286, "")] * 2, ""),
            (", not weighted", "learned(2.6593)", 0.0, ", modules=[scale]", [("loss.py", IN, 14.286, "")] * 2, ANY),
        )
    },
    "CORRO": Member("CORRO", CORRO, [("train_contrastive_no_generative.py", IN, 10.0, "column 0")], ANY),
}
