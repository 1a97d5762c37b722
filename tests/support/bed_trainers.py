"""Retrievers and other code bases that train with Lightning, transformers' Trainer, GradCache or autocast."""

from __future__ import annotations

from bed import HIDDEN, IN, LIGHTNING, LOOP, Member

ANY = "inject"  # any road

DPR_SCALE = (
    LIGHTNING
    + """
sys.modules["pytorch_lightning"] = pl
sys.modules["pytorch_lightning.strategies"] = pl.strategies
pl.strategies.DDPShardedStrategy = pl.strategies.DDPStrategy  # which lightning had once
stub("dpr_scale.utils.utils", PathManager=None, ScriptEncoder=None)
from dpr_scale.task.dpr_task import DenseRetrieverTask

model = {"_target_": "torch.nn.Linear", "in_features": 10, "out_features": 16}
optim = {"_target_": "torch.optim.SGD", "lr": 0.05}
task = DenseRetrieverTask(types.SimpleNamespace(), model, None, optim, %s)
DenseRetrieverTask.validation_epoch_end = DenseRetrieverTask.test_epoch_end = None
del DenseRetrieverTask.validation_epoch_end, DenseRetrieverTask.test_epoch_end


def batch(n=6):
    mask = torch.zeros(2 * n, dtype=torch.bool)
    mask[-1] = True  # a context that pads
    return {"query_ids": torch.randn(n, 10), "contexts_ids": torch.randn(2 * n, 10),
            "pos_ctx_indices": torch.arange(0, 2 * n, 2), "ctx_mask": mask}


torch.manual_seed(0)
fit(task, [batch() for _ in range(6)], max_steps=6)
"""
)

VLM2VEC = (
    HIDDEN
    + LOOP
    + """
for name in ("src.model", "src.model.processor", "src.arguments", "peft"):
    absent(name)
for name in ("colpali", "gme", "gme.gme_inference", "lamra", "lamra.lamra_inference", "lamra.lamra_qwen25_inference",
             "phi3_v", "phi3_v.modeling_phi3_v", "llava_next"):
    absent("src.model.baseline_backbone." + name)
absent("src", "src.model.baseline_backbone", "src.model.vlm_backbone")
MMEBModel = load("src/model/model.py", "vlm2vec_model").MMEBModel


class Toy(MMEBModel):
    def encode_input(self, input):
        return norm(self.encoder(**input).last_hidden_state[:, 0])


torch.manual_seed(0)
model = Toy(Hidden(), normalize=True, temperature=0.02)
"""
)

INSTRUCTOR = """
import transformers
from transformers import Trainer, TrainingArguments

transformers.utils.is_offline_mode = lambda: True  # which transformers had once
stub("nltk", data=types.SimpleNamespace(find=lambda name: None))
stub("InstructorEmbedding", Instructor=None, InstructorTransformer=None)
instructor = load("train.py", "instructor_train")


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(10, 16)

    def forward(self, inputs):
        return {"sentence_embedding": self.layer(inputs["input_ids"].float())}


class Own(instructor.InstructorTrainer):
    def __init__(self, *args, **options):
        Trainer.__init__(self, *args, **options)

    def _get_train_sampler(self, *_):
        return super()._get_train_sampler()

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        return super().compute_loss(model, inputs, return_outputs)

    create_optimizer = Trainer.create_optimizer


torch.manual_seed(0)
keys = [f"{k}_{what}" for k in ("query", "pos", "neg") for what in ("input_ids", "attention_mask", "instruction_mask")]
rows = [{key: torch.randn(10) for key in keys} | {"task_id": 0} for _ in range(48)]
args = TrainingArguments("out", per_device_train_batch_size=8, report_to=[], use_cpu=True, remove_unused_columns=False,
                         save_strategy="no", max_steps=6, max_grad_norm=0)
args.cl_temperature = 0.01
Own(Toy(), args, train_dataset=rows).train()
"""

RETROMAE = (
    HIDDEN
    + LOOP
    + """
package("bi_encoder", "src/bi_encoder")
stub("bi_encoder.arguments", ModelArguments=None, RetrieverTrainingArguments=None)
sys.modules["transformers.file_utils"] = __import__("transformers.utils", fromlist=["x"])
BiEncoderModel = load("src/bi_encoder/modeling.py", "bi_encoder.modeling").BiEncoderModel
torch.manual_seed(0)
lm = Hidden()
model = BiEncoderModel(lm, lm, normlized=True, temperature=0.02, contrastive_loss_weight=0.5)
"""
)

SCGPT = """
package("scgpt", "scgpt"), package("scgpt.model", "scgpt/model")
from scgpt.model.model import TransformerModel

torch.manual_seed(0)
model = TransformerModel(30, 16, 2, 16, 1, n_cls=2, vocab={"<pad>": 0}, dropout=0.2, do_mvc=True)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)
for _ in range(6):
    genes, values = torch.randint(1, 30, (12, 9)), torch.rand(12, 9)
    with torch.amp.autocast("cpu", dtype=torch.bfloat16, enabled=%s):
        out = model(genes, values, torch.zeros(12, 9).bool(), CCE=True, MVC=True, ECS=True)
        loss = 10 * out["loss_cce"] + F.mse_loss(out["mvc_output"], values) + 10 * out["loss_ecs"]
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""

SSAST = """
import timm.layers
sys.modules["timm.models.layers"] = timm.layers
absent("matplotlib")
ast = load("src/models/ast_models.py", "ssast_models")
import random

torch.manual_seed(0), random.seed(0)
model = ast.ASTModel.__new__(ast.ASTModel)
nn.Module.__init__(model)
model.unfold, model.softmax, model.lsoftmax = torch.nn.Unfold(16, stride=16), nn.Softmax(-1), nn.LogSoftmax(-1)
model.num_patches, model.p_t_dim, model.cls_token_num, model.fshape, model.tshape = 32, 8, 2, 16, 16
model.mask_embed = nn.Parameter(torch.randn(1, 1, 16))
model.v = nn.Module()
model.v.patch_embed = type("Patches", (nn.Conv2d,), {
    "forward": lambda self, x: nn.Conv2d.forward(self, x).flatten(2).transpose(1, 2)})(1, 16, 16, 16)
model.v.cls_token, model.v.dist_token = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 1, 16))
model.v.pos_embed, model.v.pos_drop = nn.Parameter(torch.randn(1, 34, 16)), nn.Identity()
model.v.norm = nn.LayerNorm(16)
model.v.blocks = nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)])
model.cpredlayer = nn.Linear(16, 256)
model.gpredlayer = nn.Linear(16, 256)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(6):
    acc, nce = model.mpc(0.2 * torch.randn(4, 1, 64, 128), 10, cluster=False)
    loss = nce + 10 * model.mpg(0.2 * torch.randn(4, 1, 64, 128), 10, cluster=False)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

OPENMATCH = (
    HIDDEN
    + LOOP
    + """
package("openmatch", "src/openmatch"), package("openmatch.modeling", "src/openmatch/modeling")
absent("openmatch.arguments", "openmatch.utils", "openmatch.modeling.linear", "openmatch.modeling.utils")
DRModel = load("src/openmatch/modeling/dense_retrieval_model.py", "openmatch.modeling.dense").DRModel
train_args = types.SimpleNamespace(distillation=%s, distil_mode="listwise", negatives_x_device=False,
                                   per_device_train_batch_size=6)
torch.manual_seed(0)
lm = Hidden()
model = DRModel(lm, lm, normalize=False, data_args=types.SimpleNamespace(train_n_passages=2), train_args=train_args,
                model_args=types.SimpleNamespace(encoder_only=False))
model.encode = lambda items, lm, head, **_: (None, lm(**items).last_hidden_state[:, 0]) if items else (None, None)
"""
)

OPERA = (
    LIGHTNING
    + """
sys.modules["pytorch_lightning"] = pl
absent("efficientnet_pytorch", "torchaudio", "src.model.htsat", "src.model.htsat.htsat", "src", "src.model")
absent("src.model.models_mae")
cola = load("src/model/models_cola.py", "opera_cola")


class Own(cola.Cola):
    def __init__(self):
        pl.LightningModule.__init__(self)
        self.do, self.encoder, self.middle_enabled = nn.Dropout(0.1), nn.Linear(10, 32), False
        self.g, self.layer_norm = nn.Linear(32, 16), nn.LayerNorm(16)
        self.linear = nn.Linear(16, 16, bias=False)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


torch.manual_seed(0)
fit(Own(), [(torch.randn(12, 10), torch.randn(12, 10)) for _ in range(6)], **dict(%s))
"""
)

GRAD_CACHE = (
    HIDDEN
    + """
package("src", "src"), package("src.grad_cache", "src/grad_cache"), stub("src.utils"), absent("src.utils.dist_utils")
stub("src.grad_cache.context_managers", RandContext=type("Fixed", (), {
    "__init__": lambda self, *_: None, "__enter__": lambda self: self, "__exit__": lambda self, *_: None}))
from src.grad_cache.grad_cache import GradCache

SimpleContrastiveLoss = load("src/loss.py", "vlm2vec_loss").SimpleContrastiveLoss
torch.manual_seed(0)
model = Hidden()
cache = GradCache([model, model], 4, SimpleContrastiveLoss(0.05), get_rep_fn=lambda x: norm(x.last_hidden_state[:, 0]))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for _ in range(6):
    optimizer.zero_grad()
    cache(tokens(12), tokens(12), no_sync_except_last=False)
    optimizer.step()
"""
)

MGCA = (
    LIGHTNING
    + """
sys.modules["pytorch_lightning"] = pl
for name in ("callbacks", "loggers"):
    sys.modules["pytorch_lightning." + name] = getattr(pl, name)
stub("pytorch_lightning.plugins", DDP2Plugin=None, DDPPlugin=None)
package("mgca", "mgca"), absent("cosine_annealing_warmup", "dateutil", "mgca.datasets", "mgca.datasets.data_module")
absent("mgca.datasets.pretrain_dataset", "mgca.datasets.transforms", "mgca.models.backbones.encoder")
import numpy as np
module = load("mgca/models/mgca/mgca_module.py", "mgca_module")
torch.autograd.set_detect_anomaly(False)


class Encoder(nn.Module):
    def __init__(self, *_, output_dim=16, **__):
        super().__init__()
        self.base, self.local_embed, self.global_embed = (nn.Linear(n, 16) for n in (10, 16, 16))

    def forward(self, x, *more):
        h = self.base(x)
        if not more:
            return h.mean(1), h
        words = torch.rand(x.shape[:2]) + 0.1
        return h.mean(1), h, words, np.array([["[CLS]", *["word"] * (x.shape[1] - 1), "[PAD]"]] * len(x))


class Own(module.MGCA):
    trainer = property(lambda self: self._trainer, pl.LightningModule.trainer.fset)
    _use_ddp_or_dpp2 = staticmethod(lambda trainer: False)

    def setup(self, stage):
        pass

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


module.ImageEncoder = module.BertEncoder = Encoder
torch.manual_seed(0)
task = Own("resnet_50", emb_dim=16, num_prototypes=20, batch_size=8, gpus=0%s)
batch = lambda: {"imgs": torch.randn(8, 6, 10), "caption_ids": torch.randn(8, 6, 10), "attention_mask": None,
                 "token_type_ids": None}
fit(task, [batch() for _ in range(6)], num_sanity_val_steps=0, limit_val_batches=0)
"""
)

MEMBERS: dict[str, Member] = {
    "VLM2Vec GradCache": Member("VLM2Vec", GRAD_CACHE, [("loss.py", IN, 20, "diagonal")], ANY),
    "MGCA": Member(
        "MGCA",
        MGCA % "",
        [("mgca_module.py", IN, 14.286, "diagonal")] * 2 + [("mgca_module.py", IN, 10, "diagonal")] * 4,
        ANY,
        needs=("einops", "lightning.pytorch"),
    ),
    **{
        f"dpr-scale{title}": Member(
            "dpr-scale",
            DPR_SCALE % options,
            [("dpr_task.py", IN, 1, "steps of 2")],
            ANY,
            needs=("lightning.pytorch", "hydra"),
        )
        for title, options in (("", ""), (", own negatives", "in_batch_negatives=False"))
    },
    "VLM2Vec": Member(
        "VLM2Vec",
        VLM2VEC + "loop(lambda: model(tokens(12), tokens(12)), model.parameters())\n",
        [("model.py", IN, 50, "diagonal")],
        ANY,
    ),
    "instructor-embedding": Member(
        "instructor-embedding", INSTRUCTOR, [("train.py", IN, 100, "column 0")] * 2, ANY, needs=("transformers",)
    ),
    **{
        f"RetroMAE{title}": Member(
            "RetroMAE",
            RETROMAE + f"loop(lambda: model(tokens(6), tokens(12){more}).loss, model.parameters())\n",
            losses,
            command,
        )
        for title, more, losses, command in (
            ("", "", [("modeling.py", IN, 50, "steps of 2")], ANY),
            (", distilled", ", torch.randn(6, 2)", [("modeling.py", IN, 50, "steps of 2")], ""),
        )
    },
    **{
        f"scGPT{title}": Member("scGPT", SCGPT % amp, [("model.py", IN, 2, "diagonal")], ANY)
        for title, amp in (("", "False"), (", autocast", "True"))
    },
    "ssast": Member("ssast", SSAST, [("ast_models.py", IN, 1, "diagonal")], ANY, needs=("timm",)),
    "mantis": Member(
        "mantis",
        """
criterion = load("src/mantis/trainer/trainer_utils/criterion.py", "mantis_criterion").ContrastiveLoss(0.1, "cpu")
net = torch.compile(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)), backend="eager")
train(lambda a, b: criterion(net(a), net(b)), modules=[net])
""",
        [("criterion.py", IN, 10, "diagonal")],
        ANY,
    ),
    **{
        f"OpenMatch{title}": Member(
            "OpenMatch",
            OPENMATCH % distil + f"loop(lambda: model(tokens(6), tokens(12){more}).loss, model.parameters())\n",
            losses,
            command,
        )
        for title, distil, more, losses, command in (
            ("", "False", "", [("dense_retrieval_model.py", IN, 1, "steps of 2")], ANY),
            (", distilled", "True", ", score=torch.randn(6, 2)", [], ""),
        )
    },
    **{
        f"OPERA{title}": Member(
            "OPERA", OPERA % options, [("models_cola.py", IN, 1, "diagonal")], ANY, needs=("lightning.pytorch",)
        )
        for title, options in (
            ("", ""),
            (", bf16-mixed", "precision='bf16-mixed'"),
            (", accumulate", "accumulate_grad_batches=2"),
        )
    },
    **{
        f"papagei NTXentLoss{title}": Member(
            "papagei-foundation-model",
            f"""
from pytorch_metric_learning import losses

criterion = losses.{call}
train(lambda a, b: criterion(a, {labels}), modules=[])
""",
            [(file, IN, 14.286, "")],
            ANY,
            needs=("pytorch_metric_learning",),
        )
        for title, call, labels, file in (
            ("", "NTXentLoss()", "torch.arange(12) // 2", "ntxent_loss.py"),
            (", classes", "NTXentLoss()", "torch.arange(12) % 4", "ntxent_loss.py"),
        )
    },
}
