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
# # Look into a batch
#
# A loss is one number. What it does to your embeddings depends on which negatives it pushes, and how hard. This
# notebook shows how to see that: in a dozen numbers, and in two pictures. It needs only PyTorch and matplotlib, and
# runs in seconds.

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("counterpoint") is None:  # on Colab
    subprocess.check_call([sys.executable, "-m", "pip", "install", "--quiet", "counterpoint-losses[plots]"])

# %%
import torch

import counterpoint as cp
from counterpoint.diagnose import figure, plot_weights

torch.manual_seed(0)

# %% [markdown]
# ## A batch
#
# 128 samples of 8 classes, two views of each. In your code, `z1` and `z2` are what your encoder returns. The classes
# are only there so that you can check what you see.

# %%
classes = torch.arange(128) % 8
centers = torch.randn(8, 64)
samples = centers[classes] + 0.8 * torch.randn(128, 64)
z1, z2 = (samples + 0.6 * torch.randn(128, 64) for _ in range(2))

# %% [markdown]
# ## An objective describes itself
#
# Its text rebuilds it, and it knows its formula.

# %%
loss_fn = cp.HCL(temperature=0.2, prior=0.125, beta=1.0)
print(loss_fn, loss_fn.formula, sep="\n")

# %% [markdown]
# ## What it sees
#
# `report` takes the arguments of the loss, and changes nothing: no gradient is stored.

# %%
cp.InfoNCE(0.2).report(z1, z2)

# %% [markdown]
# Look at three of them first (`help(cp.diagnose.report)` explains all):
#
# - `effective_negatives`: of 254 negatives, this many share the gradient. Near 1, the temperature is too small, and a
#   single negative decides; near all of them, it is large, and hard negatives count no more than easy ones.
# - `negatives_above_positive`: the share of negatives that are more similar than the positive. Far above 0 after
#   training, it hints at false negatives or wrong positives.
# - `positive_mean` and `negative_mean`: if they are close, the views share too little, or their rows do not match.
#
# The temperature moves the first one most:

# %%
print("t      effective negatives, of 254")
for t in (0.05, 0.1, 0.2, 0.5, 1.0):
    print(f"{t:<7}{cp.InfoNCE(t).report(z1, z2)['effective_negatives']:.1f}")

# %% [markdown]
# ## Which negatives get the gradient
#
# The weight of a negative over its similarity. At these settings InfoNCE and HCL push the most similar ones hardest;
# ADNCE pushes less beyond `mu`, where false negatives are likely.

# %%
plot_weights(["infonce:t=0.2", "hcl:t=0.2,prior=0.1,beta=1", "adnce:t=0.2,mu=0.5,sigma=0.3"])

# %% [markdown]
# How much of InfoNCE's gradient goes to false negatives? Here you know the classes, so you can compute it.

# %%
z = torch.nn.functional.normalize(torch.cat([z1, z2]), dim=1)
both = torch.cat([classes, classes])
own = torch.eye(256, dtype=torch.bool) | torch.eye(256, dtype=torch.bool).roll(128, 1)
false = (both[:, None] == both) & ~own
print(f"false negatives: {100 * false.sum() / (~own).sum():.0f} % of the negatives")
for t in (0.05, 0.2, 0.5, 1.0):
    weight = ((z @ z.T) / t).exp().masked_fill(own, 0)
    print(f"t = {t}: {100 * weight[false].sum() / weight.sum():.0f} % of the weight")

# %% [markdown]
# A small temperature finds the hard negatives, and in this batch these are the false ones. If you know them, exclude
# them:

# %%
cp.InfoNCE(0.2).report(z1, z2, ids=classes)

# %% [markdown]
# ## How far apart everything is
#
# Distances between samples, of the same and of different classes. The gray band is the margin of `dp`, distance
# polarization, which wants no pair in it.

# %%
same = (classes.unsqueeze(1) == classes)[torch.ones(len(z1), len(z1), dtype=torch.bool).triu(1)].repeat(2)
histogram = figure()
axes = histogram.add_subplot(xlabel="distance D = (1 - cos) / 2", ylabel="share of pairs")
axes.axvspan(0.1, 0.5, color="0.88", label="the margin of dp")
for label, pairs in (("different classes", ~same), ("same class", same)):
    axes.hist(cp.distances(z1, z2)[pairs], 50, (0, 1), density=True, histtype="step", linewidth=2, label=label)
axes.legend()
histogram

# %% [markdown]
# The less the two histograms overlap, the easier the classes are to tell apart. Save such a picture before and after
# training: it says more than the loss, whose value means nothing across objectives.
