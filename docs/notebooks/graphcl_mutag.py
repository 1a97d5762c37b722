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
# # GraphCL on MUTAG, with an honest table
#
# GraphCL trains a graph encoder without labels: two augmented copies of a graph are positives, the other graphs of
# the batch negatives. Papers compare objectives on MUTAG by the accuracy of a classifier on the embeddings. This
# notebook trains two objectives, and adds the two rows that most tables lack: the encoder before training, and no
# encoder at all.
#
# Sizes are small, so that it takes seconds on one CPU core: 3 seeds, 5 epochs, 5 folds. Papers have 20 epochs and 10
# folds; change the line below to have them too.

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("counterpoint") is None:  # on Colab
    subprocess.check_call([sys.executable, "-m", "pip", "install", "--quiet", "counterpoint-losses[graph,report]"])

SEEDS, EPOCHS, FOLDS = 3, 5, 5

# %%
import warnings
from statistics import fmean, stdev

import torch

warnings.filterwarnings("ignore", category=FutureWarning)  # of PyTorch Geometric, about torch.jit

from counterpoint.integrations import graph
from counterpoint.integrations.report.statistics import compare

# %% [markdown]
# ## The data
#
# 188 molecules of two classes. They are downloaded once, unless `$COUNTERPOINT_DATA/tu/MUTAG/raw` has the files.

# %%
data = graph.load("MUTAG")
print(data)
larger = max((data.y == 0).sum(), (data.y == 1).sum()).item()
print(f"Always guessing the larger class is right for {100 * larger / len(data):.1f} % of them.")

# %% [markdown]
# ## One run
#
# The temperature is GraphCL's 0.2, and so is the denominator, without the positive. A seed fixes the initial weights,
# the order of the graphs, their augmented copies and the folds. So two objectives with one seed differ in nothing
# else.


# %%
def accuracy(objective: str | None, seed: int) -> float:
    """Pre-train with an objective, or not at all, and classify the embeddings."""
    torch.manual_seed(seed)
    views = torch.Generator().manual_seed(seed)
    encoder = graph.Encoder(data.x.shape[1])
    if objective:
        model = graph.Pretraining(encoder, objective, graph.augmentation("random4", views))
        graph.pretrain(model, data, epochs=EPOCHS, seed=seed)
    return graph.evaluate(graph.embed(encoder, data), data.y, folds=FOLDS, seed=seed).accuracy


ROWS = {
    "untrained encoder": None,
    "GraphCL (InfoNCE)": "infonce:t=0.2,denominator=negatives",
    "ADNCE": "adnce:t=0.2,mu=0.7,denominator=negatives",
}
scores = {name: {seed: accuracy(spec, seed) for seed in range(SEEDS)} for name, spec in ROWS.items()}
bag = graph.bag_of_nodes(data)  # counts of node labels and degrees: no encoder
scores["bag of nodes"] = {seed: graph.evaluate(bag, data.y, folds=FOLDS, seed=seed).accuracy for seed in range(SEEDS)}

# %% [markdown]
# ## The table
#
# Each row minus GraphCL, seed by seed. `compare` tests all rows as one family; an interval that contains 0 means that
# you cannot tell the rows apart.

# %%
others = {name: values for name, values in scores.items() if name != "GraphCL (InfoNCE)"}
verdicts = compare(scores["GraphCL (InfoNCE)"], others, margin=0.5)
for name, values in scores.items():
    line = f"{name:20}{fmean(values.values()):6.1f} ± {stdev(values.values()):.1f}"
    if name in verdicts:
        v = verdicts[name]
        line += f"   {v.difference:+.1f} [{v.low:+.1f}, {v.high:+.1f}]  {v.kind}"
    print(line)
print("smallest difference to GraphCL that so many seeds find: "
      + ", ".join(f"{v.detectable:.1f} ({name})" for name, v in verdicts.items()))  # fmt: skip

# %% [markdown]
# ## What it means
#
# Read the last line first: it says how large a difference must be to be found with so few seeds. A difference between
# GraphCL and ADNCE that is smaller says nothing, in either direction.
#
# Then look at the two rows without training. On MUTAG the counts of node labels and degrees are as good as a trained
# encoder, or better, and an encoder that has seen no data cannot be told from a trained one here. An accuracy of 87 %
# in a paper says little without these rows. The project's study with 20 seeds, tuned temperatures and four data sets
# found the same: no difference between objectives, and counts ahead of every encoder on MUTAG.
#
# To compare objectives on your own graphs, pass them as `graph.GraphSet.from_list(dataset)`, and use at least 5
# seeds.
