"""Images, audio, proteins, molecules and cells with their texts or other modalities."""

from __future__ import annotations

from bed import ALONE, IN, LIGHTNING, LOOP, Member

ANY = "inject"  # any road

X_VLM = (
    ALONE
    + """
package("models", "models"), stub("utils", read_json=None)
absent("models.box_ops", "models.vit", "models.clip_vit", "models.swin_transformer", "models.xbert", "models.xroberta")
xvlm = load("models/xvlm.py", "models.xvlm")
model = learned(0.07, "temp")
model.embed_dim = 16
contrast = lambda a, b, idx=None: xvlm.XVLMBase.get_contrastive_loss(model, norm(a), norm(b), idx)
"""
)

OPENAI_CLIP = (
    LOOP
    + """
stub("config", temperature=1.0, image_embedding=10, text_embedding=10)
named = lambda name: type(name, (nn.Linear,), {"__init__": lambda self, *_, **__: nn.Linear.__init__(self, 10, 16)})
text = lambda self, input_ids, attention_mask: nn.Linear.forward(self, input_ids)
stub("modules", ImageEncoder=named("Image"), TextEncoder=type("Text", (named("Words"),), {"forward": text}),
     ProjectionHead=lambda **_: nn.Linear(16, 16))
torch.manual_seed(0)
model = load("CLIP.py", "openai_clip").CLIPModel()
batch = lambda: {"image": torch.randn(12, 10), "input_ids": torch.randn(12, 10), "attention_mask": torch.ones(12, 10)}
"""
)

MOLCA = (
    ALONE
    + """
package("model", "model"), absent("lavis", "lavis.models", "lavis.models.blip2_models", "lavis.common")
absent("lavis.models.blip2_models.blip2", "lavis.models.blip_models", "lavis.models.blip_models.blip_outputs")
absent("lavis.common.dist_utils", "model.help_funcs"), stub("model.blip2", Blip2Base=nn.Module)
qformer = load("model/blip2qformer.py", "model.blip2qformer")
kind = next(x for x in vars(qformer).values() if isinstance(x, type) and hasattr(x, "contrast_global"))
model = types.SimpleNamespace(temperature=0.1, device="cpu")
words = nn.Linear(16, 16 * 4)
queries = lambda z: words(z).view(len(z), 4, 16)
"""
)

MUSCALL = """
package("muscall", "muscall"), absent("muscall.modules", "muscall.modules.textual_heads")
absent("muscall.modules.audio_ssl", "muscall.modules.audio_backbones")
muscall = load("muscall/models/muscall.py", "muscall_model")
model = learned(2.66)
logits = lambda a, b: (model.logit_scale.exp() * norm(a) @ norm(b).t()).t()
"""

DRUGCLIP = """
torch.Tensor.cuda = lambda self, *_: self
absent("unicore", "unicore.losses.cross_entropy", "rdkit", "rdkit.ML", "rdkit.ML.Scoring", "rdkit.ML.Scoring.Scoring")
stub("unicore.losses", UnicoreLoss=object, register_loss=lambda name: lambda cls: cls)
stub("unicore.losses.cross_entropy", CrossEntropyLoss=nn.Module)
losses = load("unimol/losses/cross_entropy.py", "drugclip_losses")
criterion = losses.IBSLoss.__new__(losses.IBSLoss)
nn.Module.__init__(criterion)
sample = {"net_input": {}, "smi_name": None, "pocket_name": None, "target": {"finetune_target": torch.zeros(12)}}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(2.6592))

    def forward(self, **_):
        scores = torch.matmul(norm(self.a), norm(self.b).T)
        return scores * self.logit_scale.exp(), self.logit_scale.exp()


model = Net()


def contrast(a, b):
    model.a, model.b = a, b
    return criterion(model, sample)[0]
"""

GROUPVIT = (
    ALONE
    + """
stub("diffdist"), stub("diffdist.functional", all_gather=lambda out, x: [x])
package("models", "models"), absent("models.builder", "models.misc")
sys.modules["models.builder"].MODELS.register_module = lambda: lambda cls: cls
groupvit = load("models/multi_label_contrastive.py", "models.multi_label_contrastive")
import math
model = learned(math.log(1 / 0.07))
model.multi_label_logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
model.cross_entropy, model.soft_cross_entropy = nn.CrossEntropyLoss(), groupvit.SoftTargetCrossEntropy()
model.share_temperature = False
words = nn.Linear(16, 3 * 16)
kind = groupvit.MultiLabelContrastive
single = lambda a, b: kind.loss(model, a, b)
several = lambda a, b: kind.multi_label_loss(model, a.unsqueeze(1), words(b).view(len(b), 3, 16))
"""
)

MEDCLIP = """
torch.Tensor.cuda = lambda self, *_: self
package("medclip", "medclip")
losses = load("medclip/losses.py", "medclip.losses")
absent("medclip.constants", "medclip.vision_model", "torchvision", "transformers")
MedCLIPModel = load("medclip/modeling_medclip.py", "medclip.modeling_medclip").MedCLIPModel
model = MedCLIPModel.__new__(MedCLIPModel)
nn.Module.__init__(model)
model.logit_scale = nn.Parameter(torch.tensor(2.66))
model.encode_image = lambda x: norm(x)
model.encode_text = lambda x, mask=None: norm(x)
criterion = losses.ImageTextContrastiveLoss(model)
labels = lambda: (torch.rand(12, 5) > 0.6).float()
"""

LONG_CLIP = (
    ALONE
    + """
longclip = load("model/model_longclip.py", "longclip_model")
model = learned(2.66)
model.encode_image, model.encode_text = lambda x: x, lambda x: x
model.PCA = lambda x, dim: norm(x + 0.1 * x.roll(1, 1))
"""
)

PROTST = """
absent("torch_scatter", "torchdrug", "torchdrug.core", "torchdrug.layers", "torchdrug.layers.functional")
absent("torchdrug.data")
absent("torchdrug.tasks", "torchdrug.models", "torchdrug.metrics", "torchdrug.utils", "protst", "protst.model")
tasks = stub("torchdrug.tasks", Task=nn.Module, _get_criterion_name=str, _get_metric_name=str)
sys.modules["torchdrug"].tasks = tasks
sys.modules["torchdrug"].core.Configurable = type("Configurable", (), {})
core = sys.modules["torchdrug.core"]
core.Registry.register = lambda name: lambda cls: cls
ProtST = load("protst/task.py", "protst_task").ProtST
model = ProtST.__new__(ProtST)
nn.Module.__init__(model)
model.protein2text = model.text2protein = True
model.global_contrast, model.mlm_weight = False, 0
model.logit_scale = nn.Parameter(torch.tensor(2.66))


def loss(a, b):
    preds, targets = model.alignment_pred_and_target({"graph_feature": a}, {"text_feature": b})
    total = torch.zeros(())
    model.get_loss(preds, targets, total, {})
    return total
"""

XPOOL = """
package("modules", "modules"), absent("config", "config.base_config")
from modules.loss import CLIPLoss
from modules.metrics import sim_matrix_training

torch.manual_seed(0)
model, criterion = learned(4.6052), CLIPLoss()
frames = nn.Linear(16, 12 * 16)
"""

SCCLIP = (
    LIGHTNING
    + """
sys.modules["pytorch_lightning"] = pl
package("scclip", "scclip"), stub("scclip.lightning", LitModule=object)
for name in ("scclip.vit", "scclip.plot", "scclip.metrics", "scclip.logger", "anndata", "scanpy"):
    absent(name)
clip = load("scclip/clip.py", "scclip.clip")
criterion = clip.CLIPLoss(requires_grad=%s)
train(lambda a, b: criterion(norm(a), norm(b))[0], modules=[criterion])
"""
)

PROTREK = (
    ALONE
    + """
package("model", "model"), package("model.ProTrek", "model/ProTrek"), absent("faiss")
for name in ("protein_encoder", "structure_encoder", "text_encoder"):
    absent("model.ProTrek." + name)
stub("model.abstract_model", AbstractModel=nn.Module), stub("model.model_interface", register_model=lambda cls: cls)
package("utils", "utils"), absent("utils.mpr")
from model.ProTrek.protrek_trimodal_model import ProTrekTrimodalModel
from collections import defaultdict

model = ProTrekTrimodalModel.__new__(ProTrekTrimodalModel)
nn.Module.__init__(model)
model.structure_config, model.use_mlm_loss, model.temperature = "x", True, nn.Parameter(torch.tensor(0.07))
model.all_gather = lambda x: x.unsqueeze(0)
model.metrics = defaultdict(lambda: defaultdict(lambda: types.SimpleNamespace(update=lambda *_: None)))
model.get_log_dict, model.log_info, model.reset_metrics = lambda stage: {}, lambda log: None, lambda stage: None
tokens = nn.Linear(16, 5)
third = nn.Linear(16, 16)


def loss(a, b):
    labels = torch.randint(5, (12,))
    outputs = a, b, tokens(b).unsqueeze(0), third(b), tokens(third(b)).unsqueeze(0)
    return model.loss_func("train", outputs, {"seq_labels": labels, "struc_labels": labels})


train(loss, modules=[model, tokens, third])
"""
)

MEMBERS: dict[str, Member] = {
    "ProTrek": Member(
        "ProTrek", PROTREK, [("protrek_trimodal_model.py", IN, 14.286, "diagonal")], ANY, needs=("torchmetrics",)
    ),
    **{
        f"X-VLM{title}": Member(
            "X-VLM", X_VLM + f"train(lambda a, b: contrast(a, b{more}), modules=[model])\n", losses, ANY
        )
        for title, more, losses in (
            ("", "", [("xvlm.py", IN, 14.286, "diagonal")] * 2),
            (", same images", ", torch.arange(12) // 2", [("xvlm.py", IN, 14.286, "")] * 2),
        )
    },
    "moein-shariatnia/OpenAI-CLIP": Member(
        "OpenAI-CLIP",
        OPENAI_CLIP + "loop(lambda: model(batch()), model.parameters())\n",
        [("CLIP.py", IN, 1, "soft targets")],
        "",
    ),
    **{
        f"MolCA{title}": Member(
            "MolCA",
            MOLCA + f"train(lambda a, b: {call}, modules=[words])\n",
            [("blip2qformer.py", IN, 10, "diagonal")] * 2,
            ANY,
        )
        for title, call in (
            ("", "kind.contrast(model, queries(a), b)"),
            (", gathered", "kind.contrast_global(model, norm(queries(a)), norm(b), norm(queries(a)), norm(b))"),
        )
    },
    **{
        f"scCLIP{title}": Member(
            "scCLIP", SCCLIP % learned, [("clip.py", IN, 14.286, "diagonal")], ANY, needs=("lightning.pytorch",)
        )
        for title, learned in (("", "False"), (", learned scale", "True"))
    },
    **{
        f"muscall{title}": Member(
            "muscall",
            MUSCALL + f"train(lambda a, b: muscall.clip_loss(logits(a, b){more}), modules=[model])\n",
            [("muscall.py", IN, 14.3, "diagonal")],
            command,
        )
        for title, more, command in (("", "", ANY), (", weighted", ", torch.rand(12, 12), 'weighted_clip'", ANY))
    },
    "DrugCLIP": Member(
        "DrugCLIP",
        DRUGCLIP + "train(contrast, modules=[model])\n",
        [("cross_entropy.py", IN, 14.286, "diagonal")] * 2,
        ANY,
    ),
    **{
        f"GroupViT{title}": Member(
            "GroupViT",
            GROUPVIT + f"train(lambda a, b: {call}, modules=[model, words])\n",
            losses,
            ANY,
            needs=("einops", "timm"),
        )
        for title, call, losses in (
            ("", "single(a, b)", [("multi_label_contrastive.py", IN, 14.286, "diagonal")] * 2),
            (
                ", several texts",
                "single(a, b) + several(a, b)",
                [("multi_label_contrastive.py", IN, 14.286, "diagonal")] * 2
                + [("cross_entropy.py", IN, 14.286, "soft targets target")],
            ),
        )
    },
    **{
        f"MedCLIP{title}": Member(
            "MedCLIP",
            MEDCLIP + f"train(lambda a, b: criterion(b, a{more})['loss_value'], modules=[model])\n",
            losses,
            command,
        )
        for title, more, losses, command in (
            ("", "", [("modeling_medclip.py", IN, 14.3, "diagonal")], ANY),
            (", soft labels", ", None, labels(), labels()", [("losses.py", IN, 14.3, "soft")], ANY),
        )
    },
    "Long-CLIP": Member(
        "Long-CLIP",
        LONG_CLIP + "train(lambda a, b: sum(longclip.CLIP.forward(model, a, b, b.roll(1, 1), 0)), modules=[model])\n",
        [("model_longclip.py", IN, 14.3, "diagonal")] * 4,
        ANY,
    ),
    "ProtST": Member("ProtST", PROTST + "train(loss, modules=[model])\n", [("task.py", IN, 14.3, "diagonal")] * 2, ANY),
    "xpool": Member(
        "xpool",
        XPOOL
        + "sims = lambda a, b: sim_matrix_training(a, frames(b).view(12, 12, 16), 'attention')\n"
        + "train(lambda a, b: criterion(sims(a, b), model.logit_scale), modules=[model, frames])\n",
        [("loss.py", IN, 100, "diagonal")] * 2,
        ANY,
    ),
    "frozen-in-time": Member(
        "frozen-in-time",
        """
criterion = load("model/loss.py", "frozen_loss").NormSoftmaxLoss()
train(lambda a, b: criterion(norm(a) @ norm(b).t()))
""",
        [("loss.py", IN, 20, "diagonal")] * 2,
        ANY,
    ),
    "music-text-representation": Member(
        "music-text-representation",
        """
heads, model = load("mtr/modules/head.py", "mtr_head"), learned(2.66)
head = heads.CLIPHead(model.logit_scale)
train(lambda a, b: (head(a, b) + head(b, a)) / 2, modules=[model])
""",
        [("head.py", IN, 14.3, "diagonal")],
        ANY,
    ),
    "WavCaps AudioTextContrastiveLoss": Member(
        "WavCaps",
        """
criterion = load("retrieval/tools/losses.py", "wavcaps_losses").AudioTextContrastiveLoss()
model = learned(0.07, "temp")
sims = lambda a, b: norm(a) @ norm(b).t() / model.temp
train(lambda a, b: criterion(sims(a, b), sims(b, a)), modules=[model])
""",
        [("losses.py", IN, 14.286, "diagonal")] * 2,
        ANY,
    ),
}
