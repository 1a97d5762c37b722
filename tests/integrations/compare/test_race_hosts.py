"""``counterpoint race`` from its command to its sentence, on unedited scripts of frameworks and on real data.

They are small: the sentence's form and the compute behind it are compared, not who wins.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hosts import real_clone

from counterpoint.integrations import store

pytestmark = pytest.mark.slow
COMMAND = [str(Path(sys.executable).with_name("counterpoint")), "race"]
INTERVAL = r"[+-][\d.e+-]+ \[-?[\d.e+-]+, -?[\d.e+-]+\]"
SENTENCE = re.compile(
    r"(nothing that was tried (beats|is shown to beat) your loss( at t=[\d.]+)?"
    rf"(: tuning (gained|changed it by) {INTERVAL})?"
    rf"(; the best other, .+, is {INTERVAL} from it)?|"
    rf".+: {INTERVAL} over your loss( at t=[\d.]+)?); the search cost [\d.]+ times tuning the temperature alone"
    rf"(; your loss( at t=[\d.]+)? trained 1.5 times as long: {INTERVAL})?\."
    r"( Your loss.s best temperature has no neighbor on one side(, so it may gain as much by itself)?; "
    r"--budget \d+ trains one more\.)?"
    r"( Nothing was better at the end than at 1/4 of the length: is that length, or number, right\?)?"
    r"( At 1/4 your loss was no better than 0\*infonce, which switches it off \(.+\)\.)?"
    r"( Training is not shown to help: .+\.)?"
    r"( Of [a-z' ]+, only one( each)? was trained to the end; --budget \d+ trains one more\.)?"
    r"( Not tried, as treatments start at your loss's best temperature: .+\.)?"
    r"( Not tried( at another temperature)?, since --budget \d+ is too small and \d+ suffices: .+\.){0,2}"
    r"( Keep your script as it is \(.+\)\.)?"
)


def data(*parts: str) -> Path:
    path = Path(os.environ.get("COUNTERPOINT_DATA", ""), *parts)
    if not path.exists():
        pytest.skip(f"no {'/'.join(parts)} in COUNTERPOINT_DATA")
    return path


def raced(line: str, cwd: Path, **variables: str) -> dict:
    """Run the command; check its sentence, and that every run behind it has reached the loss."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run([*COMMAND, *shlex.split(line)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout)
    assert SENTENCE.fullmatch(found["sentence"]), found["sentence"]
    runs = store.find_runs(cwd / "runs")
    assert all(run.done for run in runs)
    whole = {run.details["calls"] for run in runs if not run.arguments.get("length") and not run.arguments.get("lines")}
    assert len(whole) == 1
    assert min(whole) >= 20
    assert {arm["text"] for arm in found["arms"] if not arm["dropped"]} >= {found["winner"], found["tuned"]}
    assert found["winner"] in found["sentence"] or found["winner"] == found["tuned"]
    return found


def assert_last(found: dict[str, Any]) -> None:
    """More steps are tried unless only a tuned temperature is left, whose gain is said then."""
    beats = found["sentence"].startswith(f"{found['other']}: ")
    longer = beats or found["tuned"] == "host"
    assert ("trained 1.5 times as long" in found["sentence"]) == longer
    assert longer or ": tuning " in found["sentence"]


def model_of(sentences: list[str], folder: Path) -> None:
    """Write a BERT of random weights that knows the frequent words of these sentences."""
    import tiny_bert

    words = Counter(word for sentence in sentences for word in re.findall(r"\w+|[^\w\s]", sentence))
    tiny_bert.build(folder, width=32, words=[word for word, _ in words.most_common(2000)])


STSB = """
import sys
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer


def spearman(out):
    model = SentenceTransformer(modules=[Transformer(str(out)), Pooling(32)], device="cpu")
    rows = [line.split("\\t") for line in Path(__file__).with_name("dev.tsv").read_text().splitlines()[1:] if line]
    first, second = (model.encode([row[i] for row in rows], convert_to_tensor=True) for i in (2, 3))
    ranks = [x.argsort().argsort().double() for x in (torch.cosine_similarity(first, second),
                                                      torch.tensor([float(row[1]) for row in rows]))]
    return 100 * torch.corrcoef(torch.stack(ranks))[0, 1].item()
"""


SMALL = "--seed-flag --seed --seeds 3 --budget 3 --tune-seeds 1 --objective hcl:beta=1 --json"


def test_simcse(tmp_path):
    """Sentences of Wikipedia; chosen by STS-B's development set."""
    import transformers

    clone = tmp_path / "clone"
    shutil.copytree(real_clone("simcse", "SimCSE", holds="train.py"), clone)
    shutil.copy(data("sts", "STSB-dev.tsv"), clone / "dev.tsv")
    sentences = data("wiki", "sentences.txt").read_text(encoding="utf-8").splitlines()[:512]
    (clone / "text.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    (clone / "score.py").write_text(STSB)
    model_of(sentences, tmp_path / "bert")
    cpu = "--use_cpu" if hasattr(transformers.TrainingArguments, "use_cpu") else "--no_cuda"
    found = raced(
        f"""simcse --metric python:score.py:spearman --steps-flag --max_steps {SMALL}
        -- train.py --model_name_or_path {tmp_path / "bert"} --train_file text.txt --output_dir {{out}} --max_steps 32
        --per_device_train_batch_size 16 --learning_rate 3e-3 --max_seq_length 16 --pooler_type avg --do_train
        --report_to none {cpu}""",
        clone,
    )
    assert_last(found)


# as in the documentation of sentence-transformers: similar sentences of STS-B
TRANSFORMERS = """
import argparse
import json

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

parser = argparse.ArgumentParser()
parser.add_argument("--model")
parser.add_argument("--out")
parser.add_argument("--max_steps", type=int)
parser.add_argument("--seed", type=int)
args = parser.parse_args()


def rows(file):
    return [line.split("\\t") for line in open(file, encoding="utf-8").read().splitlines()[1:] if line]


model = SentenceTransformer(args.model, device="cpu")
pairs = [(first, second) for _, score, first, second in rows("train.tsv") if float(score) >= 4]
data = Dataset.from_dict({"anchor": [first for first, _ in pairs], "positive": [second for _, second in pairs]})
arguments = SentenceTransformerTrainingArguments(
    output_dir=args.out, max_steps=args.max_steps, seed=args.seed, per_device_train_batch_size=32, learning_rate=3e-3,
    save_strategy="no", report_to="none", use_cpu=True,
)
loss = MultipleNegativesRankingLoss(model)
SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss).train()
_, scores, first, second = zip(*rows("dev.tsv"))
found = EmbeddingSimilarityEvaluator(first, second, [float(score) / 5 for score in scores], name="dev")(model)
json.dump({"dev": 100 * found["dev_spearman_cosine"]}, open(args.out + "/results.json", "w"))
"""


def test_sentence_transformers(tmp_path):
    pytest.importorskip("sentence_transformers")
    for part in ("train", "dev"):
        shutil.copy(data("sts", f"STSB-{part}.tsv"), tmp_path / f"{part}.tsv")
    lines = (tmp_path / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    model_of([" ".join(line.split("\t")[2:]) for line in lines], tmp_path / "bert")
    (tmp_path / "train.py").write_text(TRANSFORMERS)
    found = raced(
        f"""auto --metric json:results.json:dev --steps-flag --max_steps {SMALL}
        -- train.py --model bert --out {{out}} --max_steps 32""",
        tmp_path,
    )
    assert_last(found)


# lightly's example downloads CIFAR-10 and has no seed: here are 64 of its images, on a machine with one thread
SITE = """
import io
import os

import numpy
import torch
import torchvision
from PIL import Image

torch.set_num_threads(1)


class CIFAR10(torch.utils.data.Dataset):
    def __init__(self, root, transform=None, **_):
        file = numpy.load(os.path.join(os.environ["COUNTERPOINT_DATA"], "cifar10", "train.npz"))
        ends, self.labels = file["offsets"], torch.from_numpy(file["labels"][:64]).long()
        bytes_ = [file["jpeg"][ends[i] : ends[i + 1]].tobytes() for i in range(64)]
        self.images, self.transform = [Image.open(io.BytesIO(x)).convert("RGB") for x in bytes_], transform

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return self.transform(self.images[i]), int(self.labels[i])


class Few(torch.utils.data.DataLoader):
    def __init__(self, data, **_):
        super().__init__(data, batch_size=32, shuffle=True, drop_last=True)


torchvision.datasets.CIFAR10 = CIFAR10
torch.utils.data.DataLoader = Few
"""


def test_an_example_of_lightly(tmp_path):
    """It has no flag for its length: runs are stopped by the loss that it prints."""
    pytest.importorskip("lightly")
    data("cifar10", "train.npz")
    script = real_clone("lightly", holds="examples") / "examples" / "pytorch" / "simclr.py"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    line = f"""auto --metric 'output:loss: ([\\d.]+)' --lower {SMALL.replace("--seed-flag --seed", "--set-seed")}
        -- {script}"""
    found = raced(line, tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert "trained 1.5 times" not in found["sentence"]


def test_graphcl_of_torch_geometric(tmp_path):
    """MUTAG; runs are stopped by the losses that the script prints, and the winner is confirmed by its accuracy."""
    pytest.importorskip("seaborn")  # which the host imports
    raw, clone = data("tu", "MUTAG", "raw"), tmp_path / "clone"
    places = ("GraphCL/unsupervised_TU", "graphcl/unsupervised_TU", "graphcl")
    shutil.copytree(real_clone(*places, holds="gsimclr.py"), clone, ignore=shutil.ignore_patterns("data", "logs"))
    shutil.copytree(raw, clone / "data" / "MUTAG" / "MUTAG" / "raw")
    (clone / "logs").mkdir()
    accuracy = r"""--confirm-metric 'accuracy=text:logs/log_MUTAG_random2:"test": \[.*, ([\d.e-]+)\]'"""
    found = raced(
        f"""graphcl --metric 'output:Loss ([-\\d.]+)' --lower {accuracy} {SMALL}
        -- gsimclr.py --DS MUTAG --lr 0.01 --local --num-gc-layers 3 --aug random2""",
        clone,
    )
    assert "trained 1.5 times" not in found["sentence"]
