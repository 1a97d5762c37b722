"""Thirty natural mistakes of each of four users: messages name what came, what was expected or the nearest right thing.

Nothing here trains: all of it must be found before the work starts.
"""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
import torch
from documents import ROOT

import counterpoint as cp
from counterpoint.integrations import image
from counterpoint.integrations.command.main import main
from counterpoint.plugins import adnce_image, clip, lightly, moco, pyg, sentence_transformers
from counterpoint.plugins.logits import ContrastiveLoss

A, B = torch.randn(8, 16), torch.randn(8, 16)
LABELS = torch.arange(8) % 3
LOSS = cp.InfoNCE(temperature=0.5)
CRITERION = ContrastiveLoss("hcl", scale=20)
SCRIPT = "--seed-flag --seed -- train.py"
METRIC = f"--metric json:r.json:acc {SCRIPT}"
BOTH = "compare auto --objective host hcl"
RACE = "race auto --metric json:r.json:acc --seed-flag --seed --steps-flag"


class Own(cp.Objective):
    """An objective of one's own, with a formula to get wrong."""

    def __init__(self, formula):
        super().__init__()
        self.formula = formula

    def per_anchor(self, pos, neg):
        return self.formula(pos, neg)


RETRIEVAL = {  # trains text encoders with sentence-transformers or a script of their own
    "CRITERION(A @ B.T, torch.arange(9))": r"labels: expected 8 columns, got shape \(9\)",
    "CRITERION(A, B)": "labels: expected .*one-hot.*, got several",
    'ContrastiveLoss("hcl", weight=torch.ones(8))': "weights classes, but columns are samples; expected None",
    'ContrastiveLoss("hcl", reduction="avg")': "unknown reduction 'avg'. Known: mean, sum, none",
    'ContrastiveLoss("hcl", temperature=0.1)': "'temperature'. Give it to the objective",
    'ContrastiveLoss("hcl", ignore=0)': "'ignore'. Did you mean 'ignore_index'",
    'clip.ContrastiveLoss("hcl", gathr=True)': "'gathr'. Did you mean 'gather'",
    'moco.ContrastiveLoss("hcl", modle=MODEL)': "'modle'. Did you mean 'model'",
    'adnce_image.ContrastiveLoss("hcl", t=0.1)': "unknown argument 't'. Give it to the objective",
    "LOSS(A, B, false_negatives=cp.threshold(2))": r"threshold\(2.0\) is of cosines here; expected a number from -1",
    "cp.treatment('infonce; threshold=-2')(A, B, guide=(A, B))": r"threshold\(-2.0\) is of cosines",
    "cp.compare": "it is a command, `counterpoint compare --help`",
    "st.ContrastiveLoss(MODEL, 'host; duplicates')": "here, name it, as infonce:t=0.1",
    "st.ContrastiveLoss(MODEL, pairing='two_way')": "unknown pairing 'two_way'. Did you mean 'one_way'",
    "LOSS.from_logits(A @ B.T, LABELS + 7)": r"labels: expected columns from 0 to 7 or -100, got \[8, 9, ",
    "LOSS.from_logits(A @ B.T, LABELS.float())": "expected 8 columns, got shape .* of torch.float32",
    "LOSS(A, B, normalize='false')": "normalize: expected True or False, got 'false'",
    "LOSS(A.to_sparse(), B)": "view 1: expected a plain tensor, got a sparse or nested one",
    "LOSS(A, B, queue=B.to_sparse_csr())": "queue: expected a plain tensor, got a sparse or nested one",
    "LOSS.from_logits(A[0])": r"logits: expected \(..., anchors, keys\), got shape \(16\)",
    "LOSS(A @ B.T)": "at least 2 views, got 1.*from_logits",
    "LOSS(A, B, negatives=torch.randn(7, 16))": r"negatives: expected shape \(8, 16\) or \(8, n, 16\), got \(7, 16\)",
    "LOSS(A, B, hard_negatives=B)": "unknown argument 'hard_negatives'. Did you mean 'negatives'",
    "LOSS(A, B, guide=A)": "guide: expected 2 views of 8 samples",
    "LOSS(A, B, guide=(A, B))": "guide=: needs false_negatives= beside it",
    "LOSS(A, B, false_negatives=0.9)": r"expected a rule, cp.margin\(0.1\) or cp.threshold\(0.9\).*got 0.9",
    "LOSS(A, B, false_negatives=cp.margin(0.1), guide=(A[:4], B[:4]))": "expected 2 views of 8 samples",
    'LOSS(A, B, ids=["a"] * 8)': "ids: expected a tensor, got list: number its texts, those of the whole data set",
    "cp.treatment('infonce; margin=-0,1')": "unexpected ',': numbers have a decimal point, 0.1",
    "cp.treatment('infonce; duplicates=query; duplicates=doc')": "'duplicates' is given twice.*ids= takes texts, too",
    "inject sentence_transformers --objective host;guide=self;margin=0 -- train.py": "at its logits, which do not say",
    'LOSS(A, B, pairing="oneway")': "'oneway'. Did you mean 'one_way'",
    "cp.MultipleNegativesRankingLoss": r"here it is cp.InfoNCE\(temperature\)\(z1, z2\)",
    "cp.TripletLoss": r"here it is .*negatives=negative",
    "cp.CachedMultipleNegativesRankingLoss": r"here it is cp.InfoNCE\(temperature\)\(z1, z2\), with gradcache",
    "cp.GISTEmbedLoss": r"false_negatives=margin\(0\), guide=\(g1, g2\)",
    "st.ContrastiveLoss(MODEL, scale=20)": 'Give it to the objective: "infonce:t=0.05" for a scale of 20',
    "st.ContrastiveLoss(MODEL, direction=('query_to_doc',))": "'direction'. Did you mean 'directions'",
    "st.ContrastiveLoss('infonce:t=0.05', MODEL)": "expected a SentenceTransformer, got str; the objective",
    "st.ContrastiveLoss(MODEL, 'hcl:t=host')": "t=host is for `counterpoint inject`",
    "inject sentence-transformers -- train.py": "Did you mean 'sentence_transformers'",
    "train sentence": "are required: --data",
    "train sentence --data nowhere.txt": "nowhere.txt: no such file",
    "train sentence --data empty": "empty: expected a file of .txt, .csv",
    "train sentence --data notes.txt --model ./nowhere": "./nowhere is not a folder",
    "train sentence --data notes.txt --objective mnrl": "'mnrl'. Did you mean 'infonce'",
    "train sentence --data notes.txt --objective infonce:scale=20": "unknown parameter 'scale'. Known: t, ",
    "train sentence --data notes.txt --dev stsb": "'stsb'. Did you mean 'STSB-dev'",
    "train sentence --data notes.txt --pooling average": "'average'. Known: cls, pooler, mean, max",
    "train sentence --data notes.txt --max-length 0": "expected a whole number of at least 3, got '0'",
    "train sentence --preset simcse": "'simcse'. Did you mean 'simcse-bert'",
    "eval stss x": "'stss'. Did you mean 'sts'",
    "eval sts ./nowhere": "./nowhere is not a folder",
    "eval sts no/such-model": "no/such-model was not found: it is neither a folder nor on the hub",
    "eval retrieval no/such-model --data ./nowhere": "./nowhere: not a BEIR folder, nor the name",
    "eval mteb no-model": "are required: --tasks",
    "advise notes.txt": "notes.txt, line 1: expected two texts with a tab",
    "inject simcse -- train.py": "is not a clone of SimCSE",
    "inject simsce -- train.py": "'simsce'. Did you mean 'simcse'",
    "inject logits --replace train.py:f(a) -- train.py": "logits has no such option, but function",
    "push empty x": "expected owner/name, got 'x'",
}
VISION = {  # trains with lightly or Lightning
    "lightly.ContrastiveLoss('hcl:t=host')": "t=host is for `counterpoint inject`",
    "image.EvaluationSettings(attack=10)": "EvaluationSettings: unknown setting 'attack'. Did you mean 'attacked'",
    "image.ImageSet('mine', torch.randn(8, 3, 4, 4), LABELS)": "expected uint8 .* Normalize in the encoder",
    "image.ImageSet('mine', torch.rand(8, 3, 4, 4), LABELS)": "expected uint8 .* Of numbers from 0 to 1",
    "image.ImageSet('mine', torch.zeros(8, 3, 4, 4).byte(), [0] * 8)": r"got list: torch.tensor\(y\)",
    "inject simclr -- train.py": "unknown host 'simclr'. `auto` finds the loss of any script.",
    "inject lightly --steps 6 -- train.py": "a flag of the script stands behind --: -- train.py --steps ...",
    "train image --temperature 0.2": "Give it to the objective: --objective infonce:t=0.2",
    "LOSS(*torch.randn(2, 8, 3, 4, 4))": r"expected shape \(batch, width\), got \(8, 3, 4, 4\)",
    "LOSS(torch.cat([A, B]))": "at least 2 views, got 1",
    "LOSS(torch.stack([A, B], 1))": r"for \(batch, views, width\), loss_fn\(\*z\.unbind\(1\)\)",
    "LOSS([A, B])": r"got list: call loss_fn\(\*views\)",
    "LOSS(A, LABELS)": "view 2: expected floating-point values.*labels=...",
    "LOSS(A, B, label=LABELS)": "'label'. Did you mean 'labels'",
    "LOSS(A, B, labels=LABELS[:4])": r"labels: expected 8 integers, got shape \(4\)",
    "LOSS(A, B, labels=torch.eye(8))": r"labels: expected 8 integers, got shape \(8, 8\)",
    "LOSS(A, B, labels=LABELS.tolist())": "labels: expected a tensor, got list",
    "LOSS(A, B, queue=torch.randn(16, 100))": r"queue: expected shape \(keys, 16\).*transposed: give queue.T",
    "LOSS(A, B, temperature=0.1)": "unknown argument 'temperature'. Known: .*labels",
    "LOSS(A, B[:7])": r"view 2: expected shape \(8, 16\) as view 1, got \(7, 16\)",
    "LOSS(A[:1], B[:1])": "at least 2 samples.*drop_last=True",
    "LOSS(A.unsqueeze(1), torch.randn(8, 2, 16), queue=B)": "Beside a queue, both hold the same views",
    "LOSS(A, B, A, B, queue=B)": r"query and key, got 4; several of both are two tensors \(batch, views, width\)",
    "cp.MoCo": r"here it is cp.InfoNCE\(temperature\)\(query, key, queue=bank\)",
    "LOSS(A * float('nan'), B)": "128 of 128 values are NaN or infinite",
    "LOSS(A, None)": "view 2: expected a tensor, got NoneType",
    "cp.ArCL(LOSS)(A)": "arcl needs at least 2 views, got 1",
    "cp.Robust()(A, B)": "needs adversarial views: pass adversarial=, made by counterpoint.views.attack",
    "cp.InfoNCE(tau=0.5)": "'tau'. Did you mean 'temperature'",
    "cp.InfoNCE(temperature=0)": "finite number with 0 < temperature.*got 0",
    "cp.InfoNCE(torch.tensor(0.1))": r"To train a number, pass a Learned\(...\)",
    "cp.HCL(0.2, pairing='one_way')": r"'pairing'. Give it to the call: loss_fn\(z1, z2, pairing=...\)",
    "LOSS(A, B, negatives=B, negative_weight=2.0)": r"Weights of keys: negatives=cp.Keys\(z, .*own_log_weight=",
    "cp.HCL(prior=10)": "finite number with 0 <= prior < 1, got 10",
    "cp.NTXentLoss(0.1)": r"here it is cp.InfoNCE\(temperature\)\(z1, z2\)",
    "lightly.ContrastiveLoss(temperature=0.5)": "'temperature'. Give it to the objective: \"infonce:t=0.5\"",
    "lightly.ContrastiveLoss('infonce', memory_bank=4096)": "'memory_bank'. Did you mean 'memory_bank_size'",
    "cp.HCL(tau_plus=0.1)": "'tau_plus'. Did you mean 'prior'",
    "cp.objective('ntxent:t=0.5')": "'ntxent'. Did you mean 'infonce'",
    "inject lightly --objective hcl,t=0.5 -- train.py": "unexpected ',': parameters follow a colon, as in hcl:t=0.1",
    "cp.log_reports(torch.nn.Linear(2, 2), print)": "Linear contains no objective of counterpoint",
    "train image --data cifar": "'cifar' is neither a data set nor a folder. Did you mean 'cifar10'",
    "train image --data cifar10 --root nowhere": "--root: nowhere is not a folder",
    "train image --method mocov2": "'mocov2'. Did you mean 'moco'",
    "train image --augment cfar": "'cfar'. Did you mean 'cifar'",
    "train image --views 1": "at least 2, got '1'",
    "train image --objective simclr": "'simclr'. Did you mean 'infonce'",
    "train image --bacbone resnet18": "unknown flag --bacbone. Did you mean '--backbone'",
    "train image --seeds 1 2 3": "unexpected '2': --seeds takes one value",
    "train image --track tensorboard wandb": "unexpected 'wandb': --track takes one value; repeat it: --track wandb",
    "adnce_image.ContrastiveLoss('hcl', t=0.1)": "hcl:t=0.1",
    "adnce_image.ContrastiveLoss([], t=0.1)": "infonce:t=0.1",
    "train image resnet18": "unexpected 'resnet18'. Did you mean --data resnet18",
    "eval image nowhere": "nowhere: no such folder",
    "eval image empty --epsilons a": "--epsilons: expected a number, got 'a'",
    "inject lightly --scale 10 -- train.py": "lightly has no such option, but .*logits",
}
GRAPHS = {  # trains with PyTorch Geometric, and writes objectives in specs
    "pyg.ContrastiveLoss('hcl:t=host')": "t=host is for `counterpoint inject`",
    "LOSS(A[:, :8], B)": r"view 2: expected shape \(8, 8\) as view 1, got \(8, 16\)",
    "LOSS(A.numpy(), B)": r"view 1: expected a tensor, got ndarray: torch.from_numpy\(",
    "LOSS(A.long(), B.long())": "view 1: expected floating-point values, got torch.int64",
    "LOSS(A, B, ids=torch.rand(8))": "ids: expected 8 integers, got shape .* of torch.float32",
    "LOSS(A, B, engine='tile')": "'tile'. Did you mean 'tiles'",
    "LOSS(A, B, reduction='avg')": "unknown reduction 'avg'. Known: mean, none",
    "LOSS(A, B, prior=0.1)": r"prior: expected a tensor, got float; for all, HCL\(prior=0.1\)",
    "Own(lambda pos, neg: neg.sum(lambda s: s))(A, B)": "neg has no 'sum'. Known: logsumexp, mean, max, min, .*count",
    "Own(lambda pos, neg: pos.mean())(A, B)": r"per_anchor: expected .* or the shape of pos, got shape \(\)",
    "Own(lambda pos, neg: -pos.squeeze(1))(A, B)": r"per_anchor: expected a loss per anchor.*got shape \(16\)",
    "Own(lambda pos, neg: 0.5)(A, B)": "per_anchor: expected .*, got float",
    "type('Mine', (cp.InfoNCE,), {'per_anchor': None})": "Mine: InfoNCE does not call per_anchor; .* of Objective",
    "cp.objective('hcl(t=0.1)')": "parameters follow a colon",
    "cp.objective('hcl t=0.1')": "unexpected 't'",
    "cp.objective('infonce:denominator=negative')": "'negative'. Did you mean 'negatives'",
    "cp.objective('infonce:t=schedule(1,0.1,steps=9)')": r"have no names, as in schedule\(0.5,0.1,1000\)",
    "cp.objective('arcl')": r"'arcl' wraps an objective: arcl\(infonce\)",
    "cp.objective('hcl:t=.1 + dp*0.1')": r"unexpected '\*'",
    "cp.objective('host; duplicate')": "unknown objective 'host'|unknown item 'duplicate'",
    "cp.objective(0.1)": "expected a spec string, got 0.1",
    "pyg.ContrastiveLoss('infonce', tau=0.2)": "'tau'. Give it to the objective: \"infonce:t=0.2\"",
    "pyg.ContrastiveLoss('infonce', pairings='one_way')": "'pairings'. Did you mean 'pairing'",
    "pyg.ContrastiveLoss('infonce', pairing='two_way')": "unknown pairing 'two_way'. Did you mean 'one_way'",
    "pyg.ContrastiveLoss('infonce')(A, B, nodes=torch.ones(8).bool())": r"each view, got torch.bool of \(8,\)",
    "pyg.ContrastiveLoss('adnce:t=0.2;mu=0.7')": "mu is the objective's, as in adnce:t=0.2,mu=0.7",
    "pyg.ContrastiveLoss('grace:t=0.4')": "'grace'. Did you mean 'infonce'",
    "cp.GraphCL": r'here it is .*denominator="negatives".*pairing="one_way"',
    "inject function --replace info_nce(z1,z2) -- train.py": r"expected FILE:FUNCTION\(a, b\)",
    "cp.HCL(bta=1)": "'bta'. Did you mean 'beta'",
    "train graphs": "'graphs'. Did you mean 'graph'",
    "train graph infonce": "unexpected 'infonce'",
    "train graph --data ./nowhere": "is not the name of a data set",
    "train graph --preset graphlc": "'graphlc'. Did you mean 'graphcl'",
    "train graph --augment dropnodes": "'dropnodes'. Did you mean 'dnodes'",
    "train graph --objective infonce,hcl": "separate objectives by spaces, as in infonce hcl",
    "train graph --objective infonce:t=-1": "0 < temperature or .*got -1",
    "train graph --objective infonce:tau=0.1": "'tau'. Did you mean 't'",
    "train graph --objective hcl(t=0.2)": r"parameters follow a colon, hcl:t=0.2",
    "train graph --metric json:r.json:acc": r"unknown flag --metric\.\n",
    "train graph --data mutag": "'mutag' is not the name of a data set. Did you mean 'MUTAG'",
    "inject logits --site train.py:1 --objective host;guide=self;margin=0 -- train.py": "^counterpoint: host;guide=",
    "cp.objective('infonce;t=0.1')": "t is the objective's, as in infonce:t=0.1",
    "cp.SogCLR(0.1, size=60)(A, B)": "pass index=, the samples' positions in the data set",
    "pyg.ContrastiveLoss('infonce')(A, B, y=LABELS)": "'y'. Did you mean 'labels'",
    "pyg.ContrastiveLoss('infonce')(A, B, labels=LABELS.tolist())": r"got list: torch.tensor\(labels\)",
    "train graph --objective hcl:t=.1+dp*0.1": "'[*]': a factor stands before its objective, as in 0.1[*]dp",
    "train graph --objective hcl:beta=1:t=.2": "unexpected ':': parameters are separated by commas",
    "train control --data cartpole": "unknown flag --data. Did you mean '--task'",
    "report --runs runs": "unknown flag --runs. What it names stands alone",
    "train graph --objective infonce+": "expected an objective's name, found the end",
    "train graph --epoch 3": "unknown flag --epoch. Did you mean '--epochs'",
    "train graph -o hcl": "unknown flag -o. Did you mean '--objective'",
    "train graph --lr fast": "--lr: expected a number, got 'fast'",
    "train graph --epochs -1": "expected a whole number of at least 0, got '-1'",
    "train graph --batch 1": "at least 2, got '1'",
    "train graph --device gpu": "'gpu'. Did you mean 'cuda'",
    "train graph --config bad.json": "unknown key 'epohcs'. Did you mean 'epochs'",
    "train graph --config nowhere.json": "nowhere.json: cannot be read",
    "tune graph --objective adnce --grid t=a,b": "expected NAME=VALUE,VALUE,..., got 't=a,b'",
    "tune graph --objective adnce --grid tau=0.1": "no number 'tau' to tune. Did you mean 'temperature'",
    "eval graph empty": "no runs in empty: no folder there has a run.json",
    "eval graph bad.json": "expected a folder of runs, got a file",
    "eval graph empty --probe svmm": "'svmm'. Did you mean 'svm'",
    "advise a.npy b.npy": r"two arrays \(N, d\) of the same shape, got \(20, 8\) and \(19, 8\)",
    "advise a.npy a.npy --ids bad.npy": r"ids: expected the shape \(20,\), got \(3,\)",
}
DECIDING = {  # tries it on a script of the company, to decide whether to depend on it
    "cp.Treatment(cp.InfoNCE)": 'expected an objective or a spec such as "infonce:t=0.05", got',
    "cp.objective(torch.nn.Linear(2, 2))": "got Linear",
    "cp.from_dict('hcl')": "expected a dict with \"name\", got 'hcl'",
    "cp.set_checks('no')": "unknown mode 'no'. Known: auto, always, never",
    "cp.Learned(-1)": "expected low <= init <= high, got init=-1",
    "cp.infonce": "Did you mean 'InfoNCE'",
    "setattr(LOSS, 'temperature', 0.2)": r"is frozen: use .replace\(temperature=...\)",
    "version": "unknown command 'version'.*\nsee counterpoint --help",
    f"{BOTH} --metric accuracy {SCRIPT}": "expected KIND:..., such as json:FILE:KEY, got 'accuracy'",
    f"{BOTH} --set-seed {METRIC}": "Expected one way, got 2: --seed-flag",
    f"{BOTH} --jobs 0 {METRIC}": "expected a whole number of at least 1, got '0'",
    f"compare auto {METRIC} --objective host hcl": "expected two or more, such as host hcl:t=0.1, got none",
    "trian graph": "'trian'. Did you mean 'train'",
    "evaluate graph": "'evaluate'. Did you mean 'eval'",
    "doctor --jsn": "unknown flag --jsn. Did you mean '--json'",
    "demo graph": "unexpected 'graph'. Did you mean --domains graph",
    "demo --domains graphs": "'graphs'. Did you mean 'graph'",
    "objectives adnec": "'adnec'. Did you mean 'adnce'",
    "report empty --format pdf": "'pdf'. Known: terminal, markdown, html, latex, json",
    "report notes.txt": "expected a folder of runs, got a file",
    "inject train.py": "the host comes first, and the script behind --, as in: auto -- train.py",
    "inject hcl -- train.py": "it is an objective, as in: auto --objective hcl -- train.py",
    "inject logits": "which script[?] Put it behind --",
    "inject logits -- trian.py": "script not found: trian.py. Did you mean 'train.py'",
    "inject auto duplicates": "it stands behind an objective, .*as in: --objective 'host; duplicates' -- train.py",
    "inject logits -- env train.py": "script not found: env. Of launchers, torchrun, accelerate,",
    "inject logits -- python train.py": "Leave the interpreter out",
    "inject logits -- code": "code is a folder; expected a script, such as code.main.py",
    "inject logits --objective hlc -- train.py": "'hlc'. Did you mean 'hcl'",
    "inject logits --objective hcl:0.1 -- train.py": "expected a parameter's name, found '0'",
    "inject logits --site train.py -- train.py": "expected FILE:LINE or FILE:FUNCTION",
    "inject logits --way columnss -- train.py": "'columnss'. Did you mean 'columns'",
    "inject logits -m nomodule": "-m nomodule: no such module here",
    "inject logits --verify many -- train.py": "--verify: expected a number, got 'many'",
    "compare auto -- train.py": "expected two or more, such as host hcl:t=0.1, got none",
    f"compare auto --objectives host,hcl {METRIC}": "separate objectives by spaces, as in host hcl",
    f"compare auto --objective host {METRIC}": "expected two or more, such as host hcl:t=0.1, got host",
    f"compare atuo --objective host hcl {METRIC}": "'atuo'. Did you mean 'auto'",
    f"compare auto --objective host;duplicate hcl {METRIC}": "'duplicate'. Did you mean 'duplicates'",
    f"{BOTH} --metric acc {SCRIPT}": "expected KIND:..., such as json:FILE:KEY",
    f"{BOTH} --metric jsn:r.json:acc {SCRIPT}": "Did you mean 'json'",
    f"{BOTH} --metric json:r.json {SCRIPT}": "expected json:FILE:KEY, got 'json:r.json'",
    f"{BOTH} --metric output:acc {SCRIPT}": r"expected one group \(...\) around the number, got 0",
    f"{BOTH} --metric json:r.json:acc -- train.py": "how does the script get its seed?",
    f"{BOTH} --metric json:r.json:acc --seed-flag --seed train.py": "stand behind --: -- train.py",
    f"{BOTH} --metric json:r.json:acc --seed-flag --seed -- trian.py": "Did you mean 'train.py'",
    f"{BOTH} --seeds five {METRIC}": "expected a whole number of at least 1, got 'five'",
    f"{BOTH} --margin x {METRIC}": "--margin: expected a number, got 'x'",
    f"{BOTH} --on slrum {METRIC}": "'slrum'. Did you mean 'slurm'",
    f"{BOTH} --track wandbb {METRIC}": "'wandbb'. Did you mean 'wandb'",
    f"{BOTH} --out train.py {METRIC}": "train.py is not a folder",
    f"{BOTH} --baseline hlc {METRIC}": "'hlc'. Did you mean 'hcl'",
    f"{BOTH} train.py": "stand behind --: -- train.py",
    "compare --objectives host hcl train.py": "The host comes first, and the script behind --: auto --objective",
    "compare --objective host hcl auto -- train.py": "The host comes first, and the script behind --: auto --obj",
    "inject lightly --objective hcl host;ids=y -- train.py": "Did you mean --objective 'host;ids=y'. It takes one",
    "doctor train.py": "unexpected 'train.py'. Known: --help, --json",
    "race auto -- train.py": "--metric: which number is compared?",
    f"{RACE} --steps -- train.py": "not among the script's own arguments, -- train.py --steps 400.",
    f"{RACE} steps -- train.py --steps 40": "Did you mean '--steps'",
    f"{BOTH} --metric json:r.json:acc --seed-flag seed -- train.py": "got 'seed'. Did you mean '--seed'",
    f"{RACE} --steps --tune 3 -- train.py --steps 40": "unknown flag --tune. Did you mean '--tune-seeds'",
    "race auto --config bad.json -- train.py": "unknown key 'epohcs'",
    "race host -- train.py": "unknown host 'host': it is an objective, as in: auto --objective host",
    "compare auto host hcl -- train.py": "unexpected 'host': .* as in: --objective host hcl -- train.py",
    "compare auto hcl:t=1 --set-seed -- train.py": "as in: --objective hcl:t=1 --set-seed -- train.py",
    "compare auto --set-seed host hcl -- train.py": "unexpected 'host'. Did you mean --objective host",
    "compare auto -- host train.py": "unexpected 'host': .* --objective host -- train.py",
    "compare auto train.py --objective host hcl": "got none; behind the script, --objective is its own flag",
    "compare --objective host hcl --metric json:r.json:acc auto -- train.py": "unexpected 'auto'. The host comes first",
    f"{RACE} --steps --budget 2 -- train.py --steps 40": "--budget: expected 3 or more, to try 4 settings, got 2",
}
USERS = {"retrieval": RETRIEVAL, "vision": VISION, "graphs": GRAPHS, "deciding": DECIDING}
ROWS = [(user, mistake) for user, mistakes in USERS.items() for mistake in mistakes]
NAMES = {"cp": cp, "torch": torch, "ContrastiveLoss": ContrastiveLoss, "CRITERION": CRITERION}
NAMES |= {"Own": Own, "image": image, "adnce_image": adnce_image, "clip": clip, "moco": moco}
NAMES |= {"lightly": lightly, "pyg": pyg, "st": sentence_transformers, "MODEL": torch.nn.Identity()}
NAMES |= {"LOSS": LOSS, "A": A, "B": B, "LABELS": LABELS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mistakes")
    shutil.copy(ROOT / "tests" / "support" / "toy_train.py", path / "train.py")
    for name in ("empty", "code"):
        (path / name).mkdir()
    (path / "code" / "main.py").touch()
    (path / "notes.txt").write_text("one\ntwo\n")
    (path / "bad.json").write_text('{"epohcs": 3}')
    for name, shape in (("a", (20, 8)), ("b", (19, 8)), ("bad", (3,))):
        np.save(path / f"{name}.npy", np.ones(shape, dtype=np.int64 if name == "bad" else np.float32))
    return path


@pytest.mark.parametrize(("user", "mistake"), ROWS)
def test_a_mistake_is_named(user, mistake, folder, monkeypatch, capsys):
    expected = USERS[user][mistake]
    if re.match(r"\w+[.(]", mistake):
        with pytest.raises((TypeError, ValueError, AttributeError), match=expected):
            eval(mistake, dict(NAMES))
        return
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(main(mistake.split()))
    assert stopped.value.code == 2
    shown = capsys.readouterr().err
    assert re.search(expected, shown), shown
    assert "Traceback" not in shown


def test_each_user_makes_thirty():
    assert min(map(len, USERS.values())) >= 30
