"""Views of places, robots, bundles, hearts, sleep, screens of drugs and games: losses with weights of many kinds."""

from __future__ import annotations

from bed import ALONE, IN, LOOP, UNKNOWN, Member

ANY, CPU = "inject", ("--shims", "cpu")  # any road; `.cuda()` does nothing


SAMPLE4GEO = """
package("sample4geo", "sample4geo")
trainer, losses = load("sample4geo/trainer.py", "sample4geo.trainer"), load("sample4geo/loss.py", "s4g_loss")
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.logit_scale = nn.Linear(10, 16), nn.Parameter(torch.tensor(2.6593))

    def forward(self, a, b):
        return self.net(a), self.net(b)


model = Model()
config = types.SimpleNamespace(verbose=False, device="cpu", gpu_ids=(0,), clip_grad=100.0, scheduler=None)
batches = [(torch.randn(12, 10), torch.randn(12, 10), torch.arange(12)) for _ in range(8)]
loss = losses.InfoNCE(nn.CrossEntropyLoss(label_smoothing=%s), device="cpu")
trainer.train(config, model, batches, loss, torch.optim.SGD(model.parameters(), 0.05))
"""

DECISION = """
criterion = load("DecisionNCE/losses.py", "decision_losses").DecisionNCELoss(20.0, "DecisionNCE-%s")
frames = nn.Linear(16, 64)
train(lambda a, b: criterion(frames(a).view(12, 4, 16), b), modules=[frames])
"""

TACL = """
contrastive = load("pretraining/bert_contrastive.py", "tacl").label_smoothed_nll_loss
tokens = nn.Linear(16, 9 * 16)
teacher = torch.nn.Linear(16, 9 * 16)
spans = lambda x, net: norm(net(x).view(12, 9, 16))
torch.manual_seed(1)
train(lambda a, b: contrastive(spans(a, tokens) @ spans(b, teacher).detach().mT / 0.1, %s)[0], modules=[tokens])
"""

CROSS = """
absent("scipy", "scipy.sparse")
cross = load("models/CrossCBR.py", "crosscbr")
owner = types.SimpleNamespace(c_temp=0.25)
owner.cal_c_loss = lambda *pair: cross.CrossCBR.cal_c_loss(owner, *pair)
bundles = nn.Linear(16, 32)
items = lambda x: bundles(x).view(12, 2, 16)
users = lambda x: x.view(12, 1, 16).expand(-1, 2, -1)
"""

TCLR = """
clips = load("tclr_pretraining/contrastive_loss/nt_xent_original.py", "nt_xent")
local = load("tclr_pretraining/contrastive_loss/global_local_temporal_contrastive.py", "global_local")
criterion, pieces = clips.NTXentLoss("cpu", 12, 0.1, %s), nn.Linear(16, 64)
parts = lambda x: norm(pieces(x).view(12, 4, 16))
"""

AVID = """
package("criterions", "criterions"), absent("utils", "utils.distributed_utils")
stub("utils.alias_method", AliasMethod=lambda weights: types.SimpleNamespace(
    draw=lambda n: torch.multinomial(weights, n, replacement=True)))
criterion = load("criterions/avid.py", "criterions.avid").AVID(40, 16, 8, device=None)
train(lambda a, b: criterion(a, b, torch.randperm(40)[:12])[0])
"""

CLOCS = """
import numpy
numpy.object = object  # a name of numpy before 1.24
absent("tabulate", "sklearn", "sklearn.preprocessing", "sklearn.metrics")
clocs = load("prepare_miscellaneous.py", "clocs")
patients = [str(i) for i in %s]
train(lambda a, b: clocs.obtain_contrastive_loss(torch.stack([a, b], 2), patients, "%s"))
"""

SLEEP = """
losses, queue = load("src/loss.py", "sleep_losses"), torch.randn(48, 16)
"""

DRUGS = """
drugs = load("CP/model.py", "infocore")
torch.manual_seed(0)
args = types.SimpleNamespace(moco_k=48, moco_m=0.99, moco_m_clf=0.9, temperature=0.1, infocore=%s, gene_dim=10,
                             enc_nlayers=2, enc_intldim=24, enc_hiddim=16, proj="linear", dc_nlayers=1, dc_intldim=24,
                             logitdim=3, batch_size=12, anchor_logit="k", rewgrad_coef=0.1, mi_weight_coef=1.0,
                             classify_intldim=0)
library = {i: torch.randn(10) for i in range(12)}
model = drugs.MoCoPair(args, library, "cpu")
batches = F.one_hot(torch.arange(12) %% 3, 3).float()
loop(lambda: sum(each.mean() for each in model.contrastive_loss(torch.randn(12, 10), [*range(12)], None, batches)[:2]),
     [p for p in model.parameters() if p.requires_grad])
"""

AUDIO_CLIP = """
stub("model", CLIP=nn.Module), absent("model.clip.clip", "model.esresnet")
stub("model.clip", CLIP=nn.Module, tokenize=None)
clip = load("model/audioclip.py", "audioclip")


class Model(clip.AudioCLIP):
    device, dtype = "cpu", torch.float32

    def __init__(self):
        nn.Module.__init__(self)
        self.sounds, self.images, self.words = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.audio = types.SimpleNamespace(loss_ttf=lambda device: 0.0)
        for name in ("logit_scale", "logit_scale_ai", "logit_scale_at"):
            setattr(self, name, nn.Parameter(torch.tensor(2.6593)))
        self.label_to_class_idx = {str(i): i for i in range(12)}
        %s

    encode_audio = lambda self, x: self.sounds(x)
    encode_image = lambda self, x: self.images(x)
    encode_text = lambda self, text, base, chosen: self.words(self.inputs)


model = Model()


def loss(a, b):
    model.inputs = a + b
    return model(a, b, [[str(i)] for i in range(12)])[1]


train(loss, modules=[model])
"""

TRIPLE = """
torch.manual_seed(0)


class Images(nn.Module):
    def __init__(self, **_):
        super().__init__()
        self.net = nn.Linear(5, 24)

    def forward(self, x):
        return self.net(x)


class Words(nn.Module):
    config = types.SimpleNamespace(hidden_size=24)

    def __init__(self):
        super().__init__()
        self.net = nn.Embedding(60, 24)

    from_pretrained = classmethod(lambda cls, *_, **options: cls())

    def forward(self, ids=None, encoder_embeds=None, **_):
        return types.SimpleNamespace(last_hidden_state=self.net(ids) if encoder_embeds is None else encoder_embeds)


package("models", "models"), stub("models.vit", VisionTransformer=Images)
stub("models.xbert", BertModel=Words, BertConfig=types.SimpleNamespace(from_json_file=lambda path: None))
retrieval = load("models/model_retrieval.py", "tcl_retrieval")
config = dict(distill=%s, embed_dim=16, vision_width=24, image_res=16, bert_config="", temp=0.07, queue_size=48,
              momentum=0.995)
model = retrieval.ALBEF("", None, config)
words = lambda: types.SimpleNamespace(input_ids=torch.randint(60, (12, 7)), attention_mask=torch.ones(12, 7))


def loss():
    images = torch.randn(12, 17, 5)
    return sum(model(images, images + 0.1, words(), %s, torch.randperm(99)[:12]))


loop(loss, [p for p in model.parameters() if p.requires_grad])
"""

PARTIAL = """
criterion = load("utils/utils_loss.py", "pico").SupConLoss(0.07)
queue, labels = torch.randn(48, 16), torch.arange(72) %% 4
alike = (labels[:12, None] == labels).float()
features = lambda a, b: torch.cat([norm(a), norm(b).detach(), norm(queue)])
train(lambda a, b: criterion(%s, batch_size=12), modules=[])
"""

PATCHES = """
options = types.SimpleNamespace(nce_includes_all_negatives_from_minibatch=False, batch_size=3, batchSize=3, gpu_ids=[0],
                                nce_T=0.07, ot_weight=%s)
package("networks", "SPADE_MoNCE/models/networks")
criterion = load("SPADE_MoNCE/models/networks/conce.py", "networks.conce").CoNCELoss(options)
plain = load("CUT_MoNCE/models/patchnce.py", "patchnce").PatchNCELoss(options)
"""

HULC = """
import pytorch_lightning
stub("hydra")
stub("calvin_agent"), stub("calvin_agent.models"), stub("omegaconf", DictConfig=dict)
stub("calvin_agent.models.calvin_base_model", CalvinBaseModel=object)
package("hulc", "hulc"), absent("hulc.models.decoders", "hulc.models.decoders.action_decoder", "hulc.utils")
absent("hulc.utils.distributions"), package("hulc.models", "hulc/models")
hulc = load("hulc/models/hulc.py", "hulc.models.hulc")
scale, use = learned(2.6593), torch.arange(12) %% 3 > 0
owner = types.SimpleNamespace(use_clip_auxiliary_loss=True, logit_scale=scale.logit_scale, proj_vis_lang=lambda *x: x)
train(lambda a, b: 3.0 * hulc.Hulc.clip_auxiliary_loss(owner, a, b, %s), modules=[scale])
"""

META = """
for name in ("recbole", "recbole.model", "recbole.model.layers", "recbole.model.loss"):
    absent(name)
stub("recbole.model.abstract_recommender", SequentialRecommender=nn.Module)
mclrec = load("recbole/model/sequential_recommender/mclrec.py", "mclrec")
owner = object.__new__(mclrec.MCLRec)
nn.Module.__init__(owner)
owner.tau, owner.use_rl, augment = 1.0, %s, [nn.Linear(16, 16), nn.Linear(16, 16)]
train(lambda a, b: owner.meta_contrast(norm(a), norm(b), augment, "step1"), modules=augment)
"""

KGCL = """
import torch_geometric.utils
absent("cppimport", "torch_sparse", "torch_sparse.tensor", "model", "utils", "world")
contrast = load("code/contrast.py", "kgcl")
owner = object.__new__(contrast.Contrast)
nn.Module.__init__(owner)
owner.tau, rows = 0.2, torch.randperm(12)[:%d]
train(lambda a, b: owner.info_nce_loss_overall(a[rows], b[rows], b))
"""

MERL = """
absent("pandas")
hearts = load("utils/utils_loss.py", "merl")
train(lambda a, b: hearts.clip_loss(a, b, device="cpu")[0] + hearts.clip_loss(a, F.dropout(a, 0.1), device="cpu")[0])
"""

COLD = """
import torch_geometric.utils
torch_geometric.utils.scatter_ = None  # a name of old versions
cold = load("model_CLCRec.py", "clcrec")
torch.manual_seed(0)
model = object.__new__(cold.CLCRec)
nn.Module.__init__(model)
vars(model).update(num_user=20, num_neg=7, num_sample=0.5, temp_value=%s, lr_lambda=0.5, num_warm_item=30,
                   reg_weight=0.1, v_feat=torch.randn(40, 10), a_feat=None, t_feat=None)
model.id_embedding = nn.Parameter(torch.randn(60, 16))
model.encoder_layer1, model.encoder_layer2 = nn.Linear(10, 24), nn.Linear(24, 16)


def batch():
    items = torch.randint(20, 60, (12, 8))
    return torch.randint(20, (12, 1)).repeat(1, 8), items


loop(lambda: model.loss(*batch())[0], model.parameters())
"""

COOL = """
package("src", "src"), stub("src.utils", compute_pr=None, eigenvector_centrality=None)
cool = load("src/model.py", "src.model")
torch.manual_seed(0)
model = cool.gCooL(cool.Encoder(10, 24, 16, F.relu), 16, 16, tau=0.4, num_community=3, similarity="%s")
optimizer, edges = torch.optim.SGD(model.parameters(), 0.05), torch.randint(12, (2, 40))
for epoch in range(%d, %d):
    model.fit(epoch, optimizer, torch.randn(12, 10), torch.randn(12, 10), edges, edges)
"""

MEMBERS = {
    **{
        f"Sample4Geo{title}": Member("Sample4Geo", SAMPLE4GEO % smooth, [("loss.py", IN, 14.286, "diagonal")] * 2, ANY)
        for title, smooth in (("", 0.0), (", smoothed labels", 0.1))
    },
    **{
        f"DecisionNCE {kind}": Member("DecisionNCE", DECISION % kind, [("losses.py", IN, 0.0, "diagonal")] * 2, ANY)
        for kind in "PT"
    },
    **{
        f"TaCL{title}": Member("TaCL", TACL % weights, [("bert_contrastive.py", IN, 10.0, "")], ANY)
        for title, weights in ((", all tokens", "torch.ones(12, 9)"), ("", "(torch.rand(12, 9) < 0.3).float()"))
    },
    **{
        f"CrossCBR{title}": Member("CrossCBR", CROSS + f"train(lambda a, b: {loss}, modules=[bundles])\n", losses, ANY)
        for title, loss, losses in (
            (" users", "owner.cal_c_loss(users(a), users(b))", [("CrossCBR.py", IN, 4.0, "diagonal")]),
            (
                "",
                "cross.CrossCBR.cal_loss(owner, (users(a), users(b)), (items(a), items(b)))[1]",
                [("CrossCBR.py", IN, 4.0, "diagonal")],
            ),
        )
    },
    **{
        f"TCLR {title}": Member(
            "TCLR", TCLR % cosines + f"train(lambda a, b: {loss}, modules=[pieces])\n", losses, ANY, words=CPU
        )
        for title, cosines, loss, losses in (
            ("clips", False, "criterion(norm(a), norm(b))", [("nt_xent_original.py", IN, 10.0, "column 0")]),
            (
                "clips and times",
                True,
                "criterion(a, b) + local.global_local_temporal_contrastive(parts(a), parts(b), 0.1)",
                [("nt_xent_original.py", IN, 10.0, "column 0"), ("global_local_temporal_contrastive.py", IN, 10.0, "")],
            ),
        )
    },
    "AVID-CMA": Member("AVID-CMA", AVID, [("nce.py", UNKNOWN, 0.0, "")], words=CPU),
    **{
        f"CLOCS {trial}{title}": Member("CLOCS", CLOCS % (patients, trial), losses, command)
        for trial, title, patients, losses, command in (
            ("CMC", "", "range(12)", [("prepare_miscellaneous.py", IN, 0.0, "diagonal")], ANY),
            # NT-Xent of three exponentials, each divided by the norms behind its product
            ("SimCLR", "", "range(12)", [("prepare_miscellaneous.py", UNKNOWN, 0.0, "")], ""),
            ("CMSC", "", "[0, 1, 2] * 4", [("prepare_miscellaneous.py", UNKNOWN, 10.0, "")], ""),
            ("CMSC", ", one each", "range(12)", [("prepare_miscellaneous.py", IN, 0.0, "diagonal")], ANY),
        )
    },
    **{
        f"ContraWR {title}": Member("ContraWR", SLEEP + f"train(lambda a, b: {loss})\n", losses, command)
        for title, loss, losses, command in (
            ("MoCo", "losses.MoCo('cpu')(a, b, queue)", [("loss.py", IN, 2.0, "column 0")], ANY),
            ("SimCLR", "losses.SimCLR('cpu')(a, b)", [("loss.py", IN, 1.0, "")], ANY),
            ("world", "losses.OurLoss('cpu')(a, b)", [("loss.py", UNKNOWN, 0.0, "")], ""),
        )
    },
    **{
        f"InfoCORE{title}": Member("InfoCORE", LOOP + DRUGS % core, losses, command, words=CPU)
        for title, core, losses, command in (
            (" CLIP", False, [("model.py", IN, 10.0, "column 0")] * 2, ANY),
            ("", True, [("model.py", IN, 0.0, "")] * 2, ""),
        )
    },
    **{
        f"AudioCLIP{title}": Member("AudioCLIP", AUDIO_CLIP % weights, losses, command)
        for title, weights, losses, command in (
            ("", "", [("audioclip.py", IN, 14.286, "diagonal")] * 6, ANY),
            (
                ", class weights",
                "self.class_weights = torch.rand(12) + 0.5",
                [("audioclip.py", "weights", 14.286, "diagonal")] * 6,
                "",
            ),
        )
    },
    **{
        f"TCL{title}": Member("TCL", ALONE + LOOP + TRIPLE % how, [("model_retrieval.py", IN, 14.286, "")] * 5, ANY)
        for title, how in (("", (False, 0.0)), (", distilled", (True, 0.4)))
    },
    **{
        f"PiCO{title}": Member("PiCO", PARTIAL % how, losses, ANY, words=CPU)
        for title, how, losses in (
            (", queue", "features(a, b)", [("utils_loss.py", IN, 14.286, "column 0")]),
            ("", "features(a, b), alike", [("utils_loss.py", "supcon", 14.286, "")]),
        )
    },
    **{
        f"MoNCE{title}": Member("MoNCE", PATCHES % weight + f"train(lambda a, b: {loss})\n", losses, command)
        for title, weight, loss, losses, command in (
            (", plain", 1.0, "plain(norm(a), norm(b)).mean()", [("patchnce.py", IN, 14.286, "column 0")], ANY),
            (", layer 0", 1.0, "criterion(norm(a), norm(b), 0).mean()", [("conce.py", IN, 14.286, "column 0")], ANY),
            ("", 64.0, "criterion(norm(a), norm(b), 4).mean()", [("conce.py", IN, 1.0, "column 0")], ANY),
        )
    },
    **{
        f"hulc{title}": Member("hulc", HULC % use, [("hulc.py", IN, 14.286, "diagonal")] * 2, ANY)
        for title, use in (("", "None"), (", some", "use"))
    },
    **{
        f"MCLRec{title}": Member("MCLRec", META % hinge, [("mclrec.py", IN, 1.0, "column 0")] * 3, command)
        for title, hinge, command in (("", False, ANY), (", margins", True, ANY))
    },
    "KGCL": Member("KGCL-SIGIR22", KGCL % 8, [("contrast.py", IN, 5.0, "")], ANY),
    "MERL": Member("MERL-ICML2024", MERL, [("utils_loss.py", IN, 14.286, "diagonal")] * 2, ANY),
    **{
        f"CLCRec{title}": Member("CLCRec", LOOP + COLD % t, [("model_CLCRec.py", UNKNOWN, 0.0, "")], words=CPU)
        for title, t in (("", 2.0), (", sharp", 0.2))
    },
    **{
        f"gCooL{title}": Member("gCooL", COOL % how, losses, command)
        for title, how, losses, command in (
            ("", ("cos", 0, 6), [("functional.py", IN, 2.5, "")], ANY),
            (", communities", ("cos", 50, 56), [("functional.py", IN, 2.5, "")], ANY),
            (", RBF", ("RBF", 50, 56), [("functional.py", IN, 2.5, ""), ("functional.py", IN, 6.25, "")], ANY),
        )
    },
}
