"""Code bases that the finder is tried on, unmodified: what to run of each, and what it should say.

    COUNTERPOINT_HOSTS=FOLDER python tests/support/testbed.py            # a table, one line per code base
    COUNTERPOINT_HOSTS=FOLDER python tests/support/testbed.py open_clip  # what the finder says, too
    COUNTERPOINT_HOSTS=FOLDER python tests/support/testbed.py --write    # the table in the documentation

Each member is a small script beside an unmodified clone ``FOLDER/NAME`` or an installed package. It feeds random data
to the clone's own code: its training loop where that runs on a CPU, its loss on a toy encoder's outputs otherwise.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import code_bases

from counterpoint.plugins import inject, registry

PRELUDE = '''
import importlib.util
import os
import sys
import types

import torch
import torch.nn as nn
import torch.nn.functional as F

CLONE = {clone!r}
sys.path.insert(0, CLONE)


def package(name, folder):
    """A package of the clone, without its __init__, which would import what is not installed."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [os.path.join(CLONE, folder)]
    return module


def stub(name, **values):
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(values)
    return module


def train(loss_of, width=16, batch=12, modules=(), steps=6):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, width))
    optimizer = torch.optim.SGD([*net.parameters(), *(p for m in modules for p in m.parameters())], lr=0.05)
    for _ in range(steps):
        a, b = net(torch.randn(batch, 10)), net(torch.randn(batch, 10))
        loss = loss_of(a, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def norm(x):
    return F.normalize(x, dim=-1)


'''


# transformers' own model with random weights, of a batch of words and images
CLIP_MODEL = """
import torch
from transformers import CLIPConfig, CLIPModel

text = dict(vocab_size=99, hidden_size=16, intermediate_size=32, num_attention_heads=2, num_hidden_layers=1,
            max_position_embeddings=16, eos_token_id=98, bos_token_id=97, pad_token_id=1)
vision = dict(hidden_size=16, intermediate_size=32, num_attention_heads=2, num_hidden_layers=1, image_size=8,
              patch_size=4)
torch.manual_seed(0)
model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    words, images = torch.randint(2, 97, (6, 7)), torch.randn(6, 3, 8, 8)
    loss = model(input_ids=words, pixel_values=images, return_loss=True).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(float(loss.detach()), float(model.logit_scale.detach()))
"""


@dataclass
class Member:
    """A code base of the test bed.

    Attributes:
        folder: of the clone; empty for packages, which are then in ``needs``.
        code: a script that runs the unmodified code.
        losses: for each contrastive loss: end of its file, form, scale, a word of its positives.
        command: what the first ready command contains, or "" where there is none.
        needs: packages that it imports.
        words: further options of ``counterpoint inject``.
    """

    folder: str
    code: str
    losses: list[tuple[str, str, float, str]]
    command: str = ""
    needs: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


IN, OUT = "infonce", "infonce:denominator=negatives"
SITE, REPLACE, CLIP, PYG, SENTENCES = "--site", "--replace", "inject clip", "inject pyg", "inject sentence_transformers"

MEMBERS = {
    "open_clip": Member(
        "open_clip",
        """
package("open_clip", "src/open_clip")
from open_clip.loss import ClipLoss

scale = nn.Module()
scale.logit_scale = nn.Parameter(torch.tensor(2.6593))
criterion = ClipLoss()
train(lambda a, b: criterion(norm(a), norm(b), scale.logit_scale.exp()), modules=[scale])
""",
        [("loss.py", IN, 14.287, "diagonal")] * 2,
        CLIP,
    ),
    "open_clip SigLipLoss": Member(
        "open_clip",
        """
package("open_clip", "src/open_clip")
from open_clip.loss import SigLipLoss

scale = nn.Module()
scale.logit_scale, scale.logit_bias = nn.Parameter(torch.tensor(2.3)), nn.Parameter(torch.tensor(-10.0))
criterion = SigLipLoss()
train(lambda a, b: criterion(norm(a), norm(b), scale.logit_scale.exp(), scale.logit_bias), modules=[scale])
""",
        [("loss.py", "siglip", 9.974, "diagonal")],
        REPLACE,
    ),
    "SLIP CLIPLoss": Member(
        "SLIP",
        """
from losses import CLIPLoss

scale = nn.Module()
scale.logit_scale = nn.Parameter(torch.tensor(2.6593))
criterion = CLIPLoss()
call = lambda a, b: criterion({"image_embed": a, "text_embed": b, "logit_scale": scale.logit_scale.exp()})["loss"]
import utils
utils.all_gather_batch = lambda tensors: tensors
train(call, modules=[scale])
""",
        [("losses.py", IN, 14.287, "diagonal")] * 2,
        CLIP,
    ),
    "SLIP SIMCLRLoss": Member(
        "SLIP",
        """
from losses import SIMCLRLoss
import utils

utils.all_gather_batch_with_grad = lambda tensors: tensors
criterion = SIMCLRLoss()
train(lambda a, b: criterion({"aug1_embed": a, "aug2_embed": b})["loss"])
""",
        [("losses.py", IN, 10, "diagonal")] * 2,
        SITE,
    ),
    "moco-v3": Member(
        "moco-v3",
        """
from moco.builder import MoCo

torch.distributed.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
torch.Tensor.cuda = lambda self: self
model = MoCo.__new__(MoCo)
model.T = 0.2
train(lambda a, b: MoCo.contrastive_loss(model, a, b.detach()) + MoCo.contrastive_loss(model, b, a.detach()))
""",
        [("builder.py", IN, 5, "diagonal")],
        SITE,
    ),
    "FlagEmbedding": Member(
        "FlagEmbedding",
        """
for name in ("FlagEmbedding", "FlagEmbedding.abc", "FlagEmbedding.abc.finetune", "FlagEmbedding.abc.finetune.embedder"):
    package(name, name.replace(".", "/"))
from FlagEmbedding.abc.finetune.embedder.AbsModeling import AbsEmbedderModel as Model


class Own(Model):
    def __init__(self):
        nn.Module.__init__(self)
        self.cross_entropy, self.temperature = nn.CrossEntropyLoss(reduction="mean"), 0.02
        self.use_mrl, self.negatives_cross_device = False, False

    def encode(self, features):
        return features

    def compute_score(self, q, p):
        return torch.matmul(q, p.transpose(-2, -1)) / self.temperature

    def compute_loss(self, scores, target):
        return self.cross_entropy(scores, target)

    def save(self, folder):
        pass


model = Own()
train(lambda a, b: model(norm(a[:4]), norm(b)).loss)
""",
        [("driver.py", IN, 50, "3th column")],
        SITE,
        needs=("datasets",),
    ),
    "tevatron": Member(
        "tevatron",
        """
stub("peft", LoraConfig=object, TaskType=object, get_peft_model=None, PeftModel=object)
for name in ("tevatron", "tevatron.retriever", "tevatron.retriever.modeling"):
    package(name, "src/" + name.replace(".", "/"))
stub("tevatron.retriever.arguments", ModelArguments=object, TevatronTrainingArguments=object)
import transformers
stub("transformers.file_utils", ModelOutput=transformers.utils.ModelOutput)
from tevatron.retriever.modeling.encoder import EncoderModel


class Own(EncoderModel):
    def __init__(self):
        nn.Module.__init__(self)
        self.cross_entropy, self.temperature, self.is_ddp = nn.CrossEntropyLoss(), 0.02, False

    def encode_query(self, x):
        return x["x"]

    def encode_passage(self, x):
        return x["x"]


model = Own()
train(lambda a, b: model({"x": norm(a[:4])}, {"x": norm(b)}).loss)
""",
        [("encoder.py", IN, 50, "3th column")],
        SITE,
        needs=("transformers.modeling_utils",),
    ),
    "sthalles/SimCLR": Member(
        "SimCLR-sthalles",
        """
from types import SimpleNamespace as Space

from simclr import SimCLR

args = Space(device="cpu", batch_size=12, n_views=2, temperature=0.07, fp16_precision=False, epochs=1, arch="toy",
             disable_cuda=True, log_every_n_steps=100)
net = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
data = [([torch.randn(12, 3, 4, 4), torch.randn(12, 3, 4, 4)], None) for _ in range(6)]
SimCLR(model=net, optimizer=optimizer, scheduler=scheduler, args=args).train(data)
""",
        [("simclr.py", IN, 1 / 0.07, "column 0")],
        SITE,
        needs=("tensorboard",),
    ),
    "Spijkervet/SimCLR": Member(
        "SimCLR-Spijkervet",
        """
package("simclr", "simclr")
package("simclr.modules", "simclr/modules")
from simclr.modules.nt_xent import NT_Xent

criterion = NT_Xent(12, 0.5, 1)
train(criterion)
""",
        [("nt_xent.py", IN, 2, "column 0")],
        SITE,
    ),
    "SupContrast SimCLR": Member(
        "SupContrast",
        """
from losses import SupConLoss

criterion = SupConLoss()
train(lambda a, b: criterion(torch.stack([norm(a), norm(b)], 1)))
""",
        [("losses.py", IN, 1 / 0.07, "half a batch")],
        REPLACE,
    ),
    "SupContrast SupCon": Member(
        "SupContrast",
        """
from losses import SupConLoss

criterion = SupConLoss(temperature=0.1)
train(lambda a, b: criterion(torch.stack([norm(a), norm(b)], 1), torch.arange(12) % 4))
""",
        [("losses.py", "supcon", 10, "labels")],
        REPLACE,
    ),
    "GRACE": Member(
        "GRACE",
        """
from model import Encoder, Model, drop_feature

torch.manual_seed(0)
model = Model(Encoder(10, 8, F.relu), 8, 8, 0.4)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
x, edges = torch.randn(12, 10), torch.randint(0, 12, (2, 30))
for _ in range(6):
    z1, z2 = model(drop_feature(x, 0.2), edges), model(drop_feature(x, 0.3), edges)
    loss = model.loss(z1, z2, batch_size=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        [("model.py", IN, 2.5, "")],
        PYG,
        needs=("torch_geometric",),
    ),
    **{
        f"solo-learn {name}": Member(
            "solo-learn",
            f"""
for name in ("solo", "solo.losses", "solo.utils"):
    package(name, name.replace(".", "/"))
stub("solo.utils.misc", gather=lambda x: x, get_rank=lambda: 0, concat_all_gather_no_grad=lambda x: x)
from solo.losses.{name.partition(",")[0]} import {name.partition(",")[0]}_loss_func as loss_func

queue = norm(torch.randn(16, 20).T).T.contiguous()
{call}
""",
            [losses],
            command,
        )
        for name, call, losses, command in (
            ("mocov3", "train(lambda a, b: loss_func(a, b.detach(), 0.2))", ("mocov3.py", IN, 5, "diagonal"), SITE),
            ("nnclr", "train(lambda a, b: loss_func(a.detach(), b, 0.1))", ("nnclr.py", IN, 10, "diagonal"), SITE),
            (
                "mocov2plus",
                "train(lambda a, b: loss_func(norm(a), norm(b).detach(), queue, 0.2))",
                ("mocov2plus.py", IN, 5, "column 0"),
                SITE,
            ),
            (
                "simclr",
                "train(lambda a, b: loss_func(torch.cat([a, b]), torch.arange(12).repeat(2), 0.2))",
                ("simclr.py", IN, 5, "half a batch"),
                REPLACE,
            ),
            (
                "simclr, supervised",
                "train(lambda a, b: loss_func(torch.cat([a, b]), (torch.arange(12) % 4).repeat(2), 0.2))",
                ("simclr.py", "nca:estimator=g0", 5, "indexes"),
                REPLACE,
            ),
        )
    },
    **{
        f"PyGCL {name}": Member(
            "PyGCL",
            f"""
package("GCL", "GCL")
package("GCL.losses", "GCL/losses")
from GCL.losses.infonce import {name}

loss, eye = {name}(tau=0.2), torch.eye(12)
train(lambda a, b: {call})
""",
            [losses],
            command,
        )
        for name, call, losses, command in (
            (
                "InfoNCE",
                "(loss(a, b, eye, 1 - eye) + loss(b, a, eye, 1 - eye)) / 2",
                ("infonce.py", IN, 5, "diagonal"),
                PYG,
            ),
            ("InfoNCESP", "loss(a, b, eye)", ("infonce.py", IN, 5, "diagonal"), PYG),
        )
    },
    "PyGCL JSD": Member(
        "PyGCL",
        """
package("GCL", "GCL")
package("GCL.losses", "GCL/losses")
from GCL.losses.jsd import JSD

loss, eye = JSD(), torch.eye(12)
train(lambda a, b: loss(a, b, eye, 1 - eye))
""",
        [("jsd.py", "binary", 0, "")] * 2,
    ),
    "solo-learn byol": Member(
        "solo-learn",
        """
package("solo", "solo")
package("solo.losses", "solo/losses")
from solo.losses.byol import byol_loss_func

train(lambda a, b: byol_loss_func(a, b.detach()))
""",
        [],
    ),
    "Prompt-BERT": Member(
        "Prompt-BERT",
        """
import runpy
from pathlib import Path

sys.path.insert(1, os.environ["PYTHONPATH"].split(os.pathsep)[0])
import tiny_bert

tiny_bert.build(Path("bert"))
Path("text.txt").write_text("".join(f"{text}\\n" for text in tiny_bert.texts(1, 64)[0]))
start, end = "*cls*_w1_w2_*sent_0*_w3_*mask*_w4_*sep+*", "--use_cpu --do_train"
sys.argv = f"train.py --model_name_or_path bert --train_file text.txt --output_dir out --max_steps 6 {end}".split()
sys.argv += "--per_device_train_batch_size 8 --max_seq_length 16 --save_strategy no --report_to none".split()
sys.argv += ["--mask_embedding_sentence", "--mask_embedding_sentence_template", start]
sys.argv += ["--mask_embedding_sentence_different_template", start.replace("w1", "w5")]
runpy.run_path(os.path.join(CLONE, "train.py"), run_name="__main__")
""",
        [("models.py", IN, 20, "diagonal")],
        SITE,
        needs=("transformers.trainer", "datasets"),
        words=("--shims", "simcse:prompt_bert"),
    ),
    "transformers CLIPModel": Member(
        "",
        CLIP_MODEL,
        [("modeling_clip.py", IN, 14.285, "diagonal")],
        CLIP,
        needs=("transformers.modeling_utils",),
    ),
    "transformers wav2vec2": Member(
        "",
        """
from transformers import Wav2Vec2Config, Wav2Vec2ForPreTraining
from transformers.models.wav2vec2.modeling_wav2vec2 import _compute_mask_indices, _sample_negative_indices

torch.manual_seed(0)
config = Wav2Vec2Config(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, conv_dim=(16, 16),
    conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2, num_codevectors_per_group=8,
    num_codevector_groups=2, codevector_dim=16, proj_codevector_dim=16, num_negatives=5,
    num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
)
model = Wav2Vec2ForPreTraining(config).train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    sound = torch.randn(2, 800)
    length = int(model._get_feat_extract_output_lengths(800))
    mask = _compute_mask_indices((2, length), 0.4, 3)
    negatives = _sample_negative_indices((2, length), 5, mask_time_indices=mask)
    loss = model(sound, mask_time_indices=torch.tensor(mask), sampled_negative_indices=torch.tensor(negatives)).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        [("modeling_wav2vec2.py", IN, 10, "column 0")],
        SITE,
        needs=("transformers.modeling_utils",),
    ),
    **{
        f"sentence-transformers {name}": Member(
            "",
            f"""
from pathlib import Path

import tiny_bert
from sentence_transformers.sentence_transformer import losses

torch.manual_seed(0)
tiny_bert.build(Path("tiny"), dropout=0.0)
model, guide = tiny_bert.load(Path("tiny")), tiny_bert.load(Path("tiny"))
criterion = {call}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
texts = tiny_bert.texts(2, rows=6)
for _ in range(6):
    features = [model.tokenize(column) for column in texts]
    loss = criterion(features, torch.zeros(6))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            losses,
            command,
            needs=("sentence_transformers",),
        )
        for name, call, losses, command in (
            (
                "MNRL",
                "losses.MultipleNegativesRankingLoss(model)",
                [("multiple_negatives_ranking.py", IN, 20, "diagonal")],
                SENTENCES,
            ),
            (
                "Cached MNRL",
                "losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=2)",
                [("cached_multiple_negatives_ranking.py", IN, 20, "")],
                SENTENCES,
            ),
            ("GIST", "losses.GISTEmbedLoss(model, guide=guide)", [("gist_embed.py", IN, 100, "diagonal")], SENTENCES),
        )
    },
    "pytorch-metric-learning NTXent": Member(
        "",
        """
from pytorch_metric_learning.losses import NTXentLoss

criterion = NTXentLoss(temperature=0.1)
train(lambda a, b: criterion(torch.cat([a, b]), torch.arange(12).repeat(2)))
""",
        [("ntxent_loss.py", IN, 10, "")],
        needs=("pytorch_metric_learning",),
    ),
    "pytorch-metric-learning SupCon": Member(
        "",
        """
from pytorch_metric_learning.losses import SupConLoss

criterion = SupConLoss(temperature=0.1)
train(lambda a, b: criterion(torch.cat([a, b]), (torch.arange(12) % 4).repeat(2)))
""",
        [("loss_and_miner_utils.py", "supcon", 10, "labels")],
        needs=("pytorch_metric_learning",),
    ),
    "lightly": Member(
        "",
        """
from lightly.loss import NTXentLoss

train(NTXentLoss(temperature=0.5))
""",
        [("ntx_ent_loss.py", IN, 2, "")],
        "inject lightly",
        needs=("lightly",),
    ),
}


MEMBERS |= {name: Member(**values) for name, values in code_bases.MEMBERS.items()}


def write_driver(member: Member, hosts: Path, folder: Path) -> None:
    clone = str(hosts / member.folder) if member.folder else str(Path(__file__).parent)
    if Path(clone, "SentEval").is_dir():  # which scripts expect in their working directory
        (folder / "SentEval").symlink_to(Path(clone, "SentEval"))
    (folder / "driver.py").write_text(PRELUDE.replace("{clone!r}", repr(clone)) + member.code)


def watch(member: Member, hosts: Path, folder: Path) -> tuple[dict[str, Any], str]:
    """Run the finder on a member; return what it found, as data and in words."""
    found = folder / "found.json"
    write_driver(member, hosts, folder)
    words = ["-m", "counterpoint.plugins.inject", "auto", *member.words, "--json", str(found), "--", "driver.py"]
    places = os.pathsep.join([str(Path(__file__).parent), *([str(hosts / member.folder)] if member.folder else [])])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": places}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True)
    text = found.read_text() if found.exists() else ""
    return json.loads(text) if text else {"losses": [], "commands": []}, done.stderr


def verdict(member: Member, found: dict[str, Any]) -> str:
    """Say whether the member was found: "found", "half", "not found" or "wrong"."""
    losses = [loss for loss in found["losses"] if loss["form"]]
    missing = list(member.losses)
    for loss in losses:
        matching = [expected for expected in missing if _matches(loss, *expected)]
        if not matching:
            return f"wrong: {loss['site']} {loss['form']} {loss.get('scale')} {loss.get('positives')}"
        missing.remove(matching[0])
    if missing:
        return "not found" if not losses else "half: some of its losses are missing"
    command = " ".join(found["commands"][0]) if found.get("commands") else ""
    return (
        "found"
        if bool(member.command) == bool(command) and member.command in command
        else f"half: {command or 'no command'}"
    )


def _matches(loss: dict[str, Any], file: str, form: str, scale: float, positives: str) -> bool:
    return (
        Path(loss["file"]).name == file
        and (loss["form"] == form if form in (IN, OUT) else form in loss["form"])
        and (not scale or abs(loss["scale"] - scale) <= 0.02 * scale)
        and positives in str(loss.get("positives"))
    )


# ---- the table -------------------------------------------------------------------------------------


def run(folder: Path, hosts: Path, member: Member, *words: str) -> tuple[int, str]:
    """Run ``counterpoint inject`` in a fork of this process, which has imported what takes long to import."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        said = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1), os.dup2(said, 2)
        os.chdir(folder)
        sys.path.insert(0, str(hosts / member.folder))
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)
        code = 1
        try:
            code = inject.main([*words, "--", "driver.py"])
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    for path in ("store", "tiny", "bert", "out"):
        shutil.rmtree(folder / path, ignore_errors=True)
        (folder / path).unlink(missing_ok=True)
    return os.waitstatus_to_exitcode(status), (folder / "said.txt").read_text()


def row(name: str, member: Member, hosts: Path, folder: Path, tell: bool) -> list[str]:
    """Return form, verdict, road, largest differences, and how it trains with other objectives."""
    write_driver(member, hosts, folder)
    code, said = run(folder, hosts, member, "auto", *member.words, "--json", "found.json")
    text = (folder / "found.json").read_text()
    found = json.loads(text) if text else {"losses": [], "commands": []}
    if tell:
        print(said)
    losses = [loss for loss in found["losses"] if loss["form"]]
    forms = [f"{x['kind']}: {x['form']}" + f", scale {x.get('scale', 0):.3g}" * x["ours"] for x in losses]
    form = "; ".join(dict.fromkeys(forms)) or "nothing contrastive"
    start = [form, verdict(member, found)]
    if not found["commands"]:
        ours = [loss for loss in losses if loss["ours"]]
        columns = [f"{max(x.get(k, 0) for x in ours):.1g}" for k in DIFFERENCES] if ours else ["", ""]
        why = "no objective computes it" if losses else "not recognized" if member.losses else "nothing to replace"
        return [*start, "by hand" if ours else "none", *columns, *(["by hand"] * 3 if ours else [why] + [""] * 2)]
    command = found["commands"][0][2:-2]
    at = command.index("--objective") + 1
    road = f"`inject {command[0]}`"
    own = command[at].replace("adnce:", "infonce:")
    if "--own" in command:
        own = command[command.index("--own") + 1]
    elif losses[0]["form"] == "siglip":
        own = "siglip:t=host,b=host"
    temperature = re.search(r"t=[^,]+", command[at])
    rest = temperature[0] if own.startswith("siglip") and temperature else own.partition(":")[2]
    rest = rest.replace(",estimator=g0", "")
    specs = [f"adnce:{rest}", f"hcl:{rest}", f"arcl({own}):views=2"]
    trained = []
    for spec in specs:
        code, said = run(folder, hosts, member, *command[:at], spec, *command[at + 1 :], *member.words)
        trained.append("yes" if code == 0 else reason(said))
        if tell and code:
            print(said)
    code, said = run(folder, hosts, member, *command[:at], own, *command[at + 1 :], *member.words, "--verify", "3")
    match = re.search(r"relative (\S+), in \d+ steps(?:; their gradients .* by (\S+) at most)?", said)
    differences = [match[1], match[2] or ""] if match and code == 0 else [reason(said), ""]
    return [*start, road, *differences, *trained]


PAGE = Path(__file__).parents[2] / "examples" / "existing_repos" / "README.md"
HEADER = "| code base | form | found | road | value | gradient | adnce | hcl | arcl |"
DIFFERENCES = ("value_difference", "gradient_difference")
REASONS = {"logits do not say which columns are views": "only logits", "cannot be computed here": "only similarities"}


def reason(said: str) -> str:
    known = [short for text, short in REASONS.items() if text in said]
    return f"no: {known[0]}" if known else "no: " + (said.strip().splitlines() or ["it said nothing"])[-1][:60]


def main() -> None:
    hosts = Path(os.environ["COUNTERPOINT_HOSTS"]).resolve()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(Path(__file__).parent))
    for host in registry.names():
        registry.load(host)
    write, names = "--write" in sys.argv, [word for word in sys.argv[1:] if word != "--write"]
    lines = [HEADER, "|---" * HEADER.count(" | ") + "|---|"]
    print("\n".join(lines), flush=True)
    for name in names or MEMBERS:
        try:
            for package in MEMBERS[name].needs:
                importlib.import_module(package)
        except ImportError as error:
            cells = [str(error)]
        else:
            with tempfile.TemporaryDirectory() as folder:
                cells = row(name, MEMBERS[name], hosts, Path(folder), tell=bool(names))
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if write:
        text = PAGE.read_text()
        table = re.search(rf"{re.escape(HEADER)}\n(\|.*\n)*", text)
        assert table, f"no table in {PAGE}"
        PAGE.write_text(text.replace(table[0], "\n".join([*lines, ""])))


if __name__ == "__main__":
    main()
