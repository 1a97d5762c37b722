"""Brain signals, speech, satellite images, re-identification, entity alignment, outliers and more, on random data."""

from __future__ import annotations

from bed import ALONE, IN, LIGHTNING, LOOP, OUT, UNKNOWN, Member

ANY, CPU = "inject", ("--shims", "cpu")  # any road; `.cuda()` does nothing

NICE = """
import numpy as np

absent("pandas", "einops", "einops.layers", "einops.layers.torch")
sys.argv[1:] = []
os.makedirs("model", exist_ok=True)
np.save("center_clip.npy", np.random.randn(200, 16).astype("float32"))
nice = load("nice_stand.py", "nice")
torch.manual_seed(0), np.random.seed(0)
brain, images = (np.random.randn(740 + 60, n).astype("float32") for n in (10, 12))
owner = nice.IE.__new__(nice.IE)
nets = dict(Enc_eeg=nn.Linear(10, 24), Proj_eeg=nn.Sequential(nn.GELU(), nn.Linear(24, 16)), Proj_img=nn.Linear(12, 16))
vars(owner).update({name: nn.DataParallel(net) for name, net in nets.items()}, batch_size=12, batch_size_test=400,
                   n_epochs=1, lr=1e-3, b1=0.5, b2=0.999, Tensor=torch.FloatTensor, LongTensor=torch.LongTensor,
                   logit_scale=nn.Parameter(torch.tensor(2.659)), criterion_cls=nn.CrossEntropyLoss(), nSub=1,
                   log_write=open("log.txt", "w"), test_center_path="./", args=types.SimpleNamespace(dnn="clip"))
owner.get_eeg_data = lambda: (brain, [], np.random.randn(200, 10).astype("float32"), np.arange(200))
owner.get_image_data = lambda: (images, images)
owner.train()
"""

MCLEA = """
stub("models", F=F), stub("utils", cosine_sim=None)
losses = load("src/loss.py", "mclea")
criterion, balance = losses.icl_loss("cpu", tau=0.1%s), losses.CustomMultiLossLayer(2)
links = torch.tensor([[3, 7], [0, 9], [11, 2], [5, 1], [8, 10], [4, 6]])
"""

CSI = """
absent("diffdist", "diffdist.functional")
losses = load("training/contrastive_loss.py", "csi")
similarities = lambda a, b: losses.get_similarity_matrix(norm(torch.cat([a, b])))
"""

BC = """
recommenders = load("model.py", "bc")
torch.manual_seed(0)


def recommender(name):
    owner = getattr(recommenders, name).__new__(getattr(recommenders, name))
    nn.Module.__init__(owner)
    owner.embed_user, owner.embed_item = nn.Embedding(40, 16), nn.Embedding(60, 16)
    owner.embed_user_pop, owner.embed_item_pop = nn.Embedding(5, 16), nn.Embedding(5, 16)
    owner.tau = owner.tau1 = owner.tau2 = 0.1
    owner.w_lambda, owner.decay, owner.batch_size = 0.3, 1e-4, 12
    owner.n_users, owner.n_items, owner.n_layers = 40, 60, 2
    owner.Graph = (torch.rand(100, 100) < 0.1).float().to_sparse() / 10
    return owner


users = lambda n=40: torch.randperm(40)[:12] % n
items = lambda n=60: torch.randperm(60)[:12] % n
others = lambda n=60: torch.randint(n, (12, 20))
"""

SPEECHCLIP = """
losses = load("avssl/module/losses.py", "speechclip")
criterion = losses.%s
train(lambda a, b: criterion(%s), modules=[criterion])
"""

SAT2CAP = (
    ALONE
    + LIGHTNING
    + """
absent("webdataset", "transformers", "tqdm", "sat2cap.multidata", "sat2cap.evaluations", "sat2cap.evaluations.metrics")
sys.modules["pytorch_lightning"] = pl
package("sat2cap", "sat2cap"), package("sat2cap.models", "sat2cap/models")
absent("sat2cap.models.clip", "sat2cap.models.geoencode")
from sat2cap.models.geomoco import GeoMoCo
from sat2cap.models.temp import temp_layer

to = torch.Tensor.to
torch.Tensor.to = lambda x, *a, **k: x if a == ("cuda",) else to(x, *a, **k)
torch.manual_seed(0)


class Encoder(nn.Linear):
    def forward(self, x):
        z = super().forward(x)
        return norm(z), z


class Task(GeoMoCo):
    def __init__(self):
        pl.LightningModule.__init__(self)
        self.save_hyperparameters(dict(geo_encode=False, prompt_loss=False, train_batch_size=12))
        self.img_encoder, self.imo_encoder, self.K = Encoder(10, 16).requires_grad_(False), Encoder(10, 16), 48
        self.temp_layer = temp_layer(0.07)
        self.register_buffer("queue", F.normalize(torch.randn(16, 48), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    validation_epoch_end = validation_step = None  # the former is refused by today's Lightning

    def on_fit_start(self):  # it fills the queue from files
        pass

    def configure_optimizers(self):
        return torch.optim.SGD([*self.imo_encoder.parameters(), *self.temp_layer.parameters()], 0.05)


fit(Task(), [(torch.randn(12, 10), torch.randn(12, 10), 0, 0, 0) for _ in range(6)])
"""
)

ATC = """
for name in ("ul.algos.ul_for_rl.base", "utils.quick_args", "utils.logging", "ul.replays.ul_for_rl_replay",
             "utils.buffer", "algos.utils", "models.utils", "ul.models.ul.encoders", "ul.algos.utils.data_augs"):
    absent("rlpyt." + name)
sys.modules["rlpyt.ul.algos.ul_for_rl.base"].BaseUlAlgorithm = object
sys.modules["rlpyt.utils.buffer"].buffer_to = lambda x, device: x
sys.modules["rlpyt.algos.utils"].valid_from_done = lambda done: 1 - done
atc = load("rlpyt/ul/algos/ul_for_rl/augmented_temporal_contrast.py", "atc")
torch.manual_seed(0)


class Encoder(nn.Sequential):
    def forward(self, x):
        z = super().forward(x)
        return z, z


encoder = Encoder(nn.Flatten(), nn.Linear(48, 16))
owner = atc.AugmentedTemporalContrast.__new__(atc.AugmentedTemporalContrast)
vars(owner).update(delta_T=3, random_shift_prob=0.0, device="cpu", encoder=encoder, target_encoder=encoder,
                   contrast=atc.ContrastModel(16, 32), c_e_loss=nn.CrossEntropyLoss(ignore_index=atc.IGNORE_INDEX))


def samples():
    done = torch.zeros(4, 12)
    done[3, 7] = %s
    return types.SimpleNamespace(observation=torch.randn(4, 12, 3, 4, 4), done=done)


loop(lambda: owner.atc_loss(samples())[0], [*encoder.parameters(), *owner.contrast.parameters()])
"""

CA_TCC = """
absent("einops")
sys.path.insert(0, CLONE + "/trainer")
absent("dataloader", "dataloader.dataloader", "sklearn", "sklearn.metrics", "pandas", "utils")
package("models", "models")
stub("models.attention", Seq_Transformer=lambda dim, **_: Rows(16, dim))


class Rows(nn.Linear):
    def forward(self, x):
        return super().forward(x).cumsum(1)[:, -1]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.head = nn.Conv1d(1, 16, 3, padding=1), nn.Linear(16, 3)

    def forward(self, x):
        z = self.net(x)
        return self.head(z.mean(2)), z


torch.manual_seed(0)
trainer = load("trainer/trainer.py", "ca_tcc")
from models.TC import TC
ns = types.SimpleNamespace
config = ns(final_out_channels=16, batch_size=12, TC=ns(timesteps=4, hidden_dim=20),
            Context_Cont=ns(temperature=0.2, use_cosine_similarity=True))
model, temporal = Encoder(), TC(config, "cpu")
data = [(torch.randn(12, 1, 10), torch.arange(12) %% 3, torch.randn(12, 1, 10), torch.randn(12, 1, 10))] * 6
optimizers = [torch.optim.SGD(m.parameters(), 0.05) for m in (model, temporal)]
trainer.model_train(model, temporal, *optimizers, nn.CrossEntropyLoss(), data, config, "cpu", %r)
"""

CONSERT = """
package("sentence_transformers", "sentence_transformers")
package("sentence_transformers.losses", "sentence_transformers/losses")
absent("sentence_transformers.SentenceTransformer")
from sentence_transformers.losses.AdvCLSoftmaxLoss import AdvCLSoftmaxLoss
criterion = AdvCLSoftmaxLoss(nn.Identity(), 16, 2, use_contrastive_loss=True, cutoff_direction="row", cutoff_rate=0.2)
train(lambda a, b: criterion._contrastive_loss_forward(a, b, hidden_norm=%s, temperature=0.1))
"""

CIDER = """
losses = load("utils/losses.py", "cider")
data = [(torch.randn(16), torch.tensor(i % 4)) for i in range(16)]
args = types.SimpleNamespace(n_cls=4, feat_dim=16, proto_m=0.9)
compact, labels = losses.CompLoss(args, temperature=0.1), torch.arange(12) % 4
spread = losses.DisLoss(args, nn.Identity(), torch.utils.data.DataLoader(data, 4))
train(lambda a, b: 2 * compact(norm(a), spread.prototypes, labels) + spread(norm(b), labels))
"""

COSQA = """
absent("transformers", "transformers.modeling_bert")


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()


stub("transformers.modeling_utils", PreTrainedModel=Model)
models = load("code_search/models.py", "cosqa")


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 768)

    def forward(self, tokens, attention_mask):
        return None, self.words(tokens).mean(1)


model = models.%s(Encoder(), None, None, None)
loop(lambda: model(*torch.randint(2, 50, (2, 12, 6)), torch.ones(12))[0], model.parameters())
"""

MERIT = """
merit = load("net/merit.py", "merit")
torch.manual_seed(0)


class Convolution(nn.Linear):
    def forward(self, x, adjacency, sparse):
        return adjacency @ super().forward(x)


model = merit.MERIT(Convolution(10, 512), 10, 24, 24, 24, 24, 0.8, 0.6)
adjacency = lambda: torch.eye(20) + (torch.rand(20, 20) < 0.2).float() / 4
x = torch.randn(20, 10)
loop(lambda: model(adjacency(), adjacency(), x, x, False), model.parameters(), steps=6)
"""

MEMBERS = {
    "NICE-EEG": Member("NICE-EEG", NICE, [("nice_stand.py", IN, 14.286, "")] * 2, ANY, words=CPU),
    **{
        f"MCLEA{title}": Member("MCLEA", MCLEA % options + code, losses, command)
        for title, options, code, losses, command in (
            (
                "",
                "",
                "train(lambda a, b: criterion(torch.cat([a, b]), links), batch=6)\n",
                [("loss.py", IN, 10.0, "")],
                ANY,
            ),
            (
                ", inversion",
                ", inversion=True",
                "train(lambda a, b: criterion(torch.cat([a, b]), links), batch=6)\n",
                [("loss.py", IN, 10.0, "")],
                ANY,
            ),
            (
                ", two modalities",
                "",
                "other = nn.Linear(16, 16)\n"
                "both = lambda x: balance([criterion(x, links), criterion(other(x), links)])\n"
                "train(lambda a, b: both(torch.cat([a, b])), modules=[other, balance], batch=6)\n",
                [("loss.py", IN, 10.0, "")],
                ANY,
            ),
            (
                ", alignment",
                "",
                "align = losses.ial_loss('cpu')\n"
                "train(lambda a, b: align(torch.cat([a, b]), torch.cat([b, a]), links), batch=6)\n",
                [("loss.py", UNKNOWN, 0.0, "")],
                "",
            ),
        )
    },
    **{
        f"cluster-contrast-reid{title}": Member(
            "cluster-contrast-reid",
            "torch.Tensor.cuda = lambda self, *_: self\n"
            'absent("clustercontrast")\n'
            'cm = load("clustercontrast/models/cm.py", "cm")\n'
            f"memory = cm.ClusterMemory(16, 20, 0.05, use_hard={hard})\n"
            "memory.features = norm(torch.randn(20, 16))\n"
            "train(lambda a, b: memory(a, torch.randint(20, (12,))))\n",
            [("cm.py", IN, 20.0, "")],  # but its labels look like classes
        )
        for title, hard in (("", False), (", hardest", True))
    },
    **{
        f"MIL-NCE{title}": Member(
            "MIL-NCE_HowTo100M",
            "torch.Tensor.cuda = lambda self, *_: self\n"
            'criterion = load("loss.py", "milnce").MILNCELoss()\n'
            f"train(lambda a, b: criterion(a, {text}))\n",
            [("loss.py", UNKNOWN, 0.0, "")],
        )
        for title, text in (("", "torch.cat([b, b.roll(1, 1), -b], 1).view(-1, 16)"), (", one caption", "b"))
    },
    "CSI": Member(
        "CSI",
        CSI + "train(lambda a, b: losses.NT_xent(similarities(a, b)))\n",
        [("contrastive_loss.py", IN, 2.0, "")],
        ANY,
    ),
    "CSI, supervised": Member(
        "CSI",
        CSI + "train(lambda a, b: losses.Supervised_NT_xent(similarities(a, b), torch.arange(12) % 4, 0.07))\n",
        [("contrastive_loss.py", UNKNOWN, 0.0, "")],  # its epsilon is larger than most probabilities
    ),
    **{
        f"BC-Loss {name}": Member("BC-Loss", BC + LOOP + f"owner = recommender({name!r})\n{code}", losses, command)
        for name, code, losses, command in (
            (
                "INFONCE",
                "loop(lambda: sum(owner(users(), items(), others())), owner.parameters())\n",
                [("model.py", IN, 10.0, "")],
                ANY,
            ),
            (
                "INFONCE_batch",
                "loop(lambda: sum(owner(users(), items())), owner.parameters())\n",
                [("model.py", IN, 10.0, "")],
                ANY,
            ),
            (
                "BC_LOSS",
                "popular = lambda: (users(5), items(5), others(5))\n"
                "loop(lambda: sum(owner(users(), items(), others(), *popular())[:3]), owner.parameters())\n",
                [("model.py", IN, 10.0, "")],  # to the other loss's positives, an angle is added
                "",
            ),
        )
    },
    **{
        f"SpeechCLIP{title}": Member("SpeechCLIP", SPEECHCLIP % (made, arguments), losses, command)
        for title, made, arguments, losses, command in (
            ("", "MaskedContrastiveLoss()", "norm(a), norm(b)", [("losses.py", IN, 14.286, "")], ANY),
            (
                ", same images",
                "MaskedContrastiveLoss(temperature_trainable=True)",
                "norm(a), norm(b), torch.tensor([0, 0, *range(2, 12)])",
                [("losses.py", IN, 14.286, "")],
                ANY,
            ),
            (
                ", decoupled",
                "MaskedContrastiveLoss(dcl=True)",
                "norm(a), norm(b)",
                [("losses.py", OUT, 14.286, "")],
                ANY,
            ),
            (
                ", margin",
                "MaskedContrastiveLoss(margin=0.2)",
                "norm(a), norm(b)",
                [("losses.py", UNKNOWN, 0.0, "")],
                "",
            ),
            (
                " SupConLoss",
                "SupConLoss(temperature=0.1)",
                "torch.stack([norm(a), norm(b)], 1), torch.arange(12) % 4",
                [("losses.py", "supcon", 10.0, "")],
                ANY,
            ),
        )
    },
    "Sat2Cap": Member("Sat2Cap", SAT2CAP, [("geomoco.py", IN, 14.286, "column 0")], ANY, needs=("lightning",)),
    "rlpyt ATC": Member("rlpyt", LOOP + ATC % 0, [("augmented_temporal_contrast.py", IN, 1.0, "")], ANY),
    "rlpyt ATC, ends": Member("rlpyt", LOOP + ATC % 1, [("augmented_temporal_contrast.py", IN, 1.0, "")], ANY),
    "CA-TCC": Member("CA-TCC", CA_TCC % "self_supervised", [("TC.py", IN, 1.0, ""), ("loss.py", IN, 5.0, "")], ANY),
    "CA-TCC, labels": Member("CA-TCC", CA_TCC % "SupCon", [("TC.py", IN, 1.0, ""), ("loss.py", "supcon", 5.0, "")]),
    "ConSERT": Member("ConSERT", CONSERT % True, [("AdvCLSoftmaxLoss.py", IN, 10.0, "")] * 2, ANY),
    "cider": Member(
        "cider",
        "torch.Tensor.cuda = lambda self, *_: self\n" + CIDER,
        [("losses.py", IN, 10.0, "")],  # its other loss only spreads prototypes
    ),
    **{
        f"CoCLR (code search), {name}": Member("CoCLR-CoSQA", LOOP + COSQA % name, [("models.py", UNKNOWN, 0.0, "")])
        for name in ("ModelContra", "ModelContraOnline")
    },
    "MERIT": Member("MERIT", LOOP + MERIT, [("merit.py", IN, 1.0, "")] * 2, ANY),
}
