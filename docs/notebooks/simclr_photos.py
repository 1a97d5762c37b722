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
# # SimCLR on your photos
#
# SimCLR learns from pictures without labels: two random crops of a picture are positives, the other pictures of the
# batch negatives. Set `FOLDER` to a folder of pictures. Without one, the notebook takes small scanned digits, which
# come with scikit-learn.
#
# Sizes are for one CPU core and seconds. For real photos use a GPU, `SIZE = 96`, `resnet18` and 100 epochs or more.

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("counterpoint") is None:  # on Colab
    subprocess.check_call([sys.executable, "-m", "pip", "install", "--quiet", "counterpoint-losses[image,plots]"])

FOLDER = None  # "/content/my_photos": pictures, or a folder of pictures per class
SIZE, BACKBONE, CHANNELS, EPOCHS, BATCH = 16, "conv4", 8, 6, 128

# %%
import torch
import torch.nn.functional as F

from counterpoint.diagnose import figure
from counterpoint.integrations import image

data = image.load(FOLDER or "digits", "train", SIZE)
test = image.load(FOLDER or "digits", "test", SIZE)
print(data, test, sep="\n")

# %% [markdown]
# ## What the network is asked to recognize
#
# Look at the augmentation before you train: what it changes, the network learns to ignore. Digits must not be
# mirrored; colors are what tells some photos apart.

# %%
recipe = image.recipe("cifar" if FOLDER else "digits", data.size)
generator = torch.Generator().manual_seed(0)
shown = data.x[:6]
views = [shown / 255, recipe(shown, generator), recipe(shown, generator)]


def gallery(rows: list[torch.Tensor], labels: list[str]) -> object:
    """Draw rows of pictures, (N, 3, height, width) in [0, 1]."""
    drawn = figure(1.0 * len(rows[0]) + 1, 1.0 * len(rows))
    axes = drawn.subplots(len(rows), len(rows[0]), squeeze=False)
    for line, pictures, label in zip(axes, rows, labels, strict=True):
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
        for axis, picture in zip(line, pictures, strict=True):
            axis.imshow(picture.permute(1, 2, 0).clamp(0, 1))
            axis.set(xticks=[], yticks=[])
    return drawn


gallery(views, ["picture", "view 1", "view 2"])

# %% [markdown]
# ## Train
#
# Two networks with the same initial weights, one per objective. ADNCE gives the most similar negatives, which may
# show the same thing, less weight.

# %%
settings = image.Settings(backbone=BACKBONE, channels=CHANNELS, epochs=EPOCHS, batch=BATCH)
torch.manual_seed(0)
untrained = image.build(settings, "infonce:t=0.2", SIZE).encoder.eval()
encoders = {"before training": untrained}
for objective in ("infonce:t=0.2", "adnce:t=0.2,mu=0.7"):
    torch.manual_seed(0)
    method = image.build(settings, objective, SIZE)
    image.pretrain(image.Pretraining(method, recipe), data)
    encoders[objective] = method.encoder

# %% [markdown]
# ## Which pictures are alike?
#
# For the picture on the left, the most similar pictures of the training data. This works without any label.

# %%
query = 3
rows, labels = [], []
for name, encoder in encoders.items():
    z, z_test = (F.normalize(image.features(encoder, x), dim=1) for x in (data.x, test.x))
    nearest = (z_test[query] @ z.T).topk(5).indices
    rows.append(torch.cat([test.x[query : query + 1], data.x[nearest]]) / 255)
    labels.append(name)
gallery(rows, labels)

# %% [markdown]
# ## How good is it?
#
# If your folder has a folder per class, or for the digits, neighbors vote: `knn` is the accuracy on pictures that
# were not trained on. The pixels themselves are the row to beat.

# %%
if data.labelled and test.labelled:
    pixels = [x.flatten(1).float() for x in (data.x, test.x)]
    print(f"{'pixels':22}{image.knn(pixels[0], data.y, pixels[1], test.y, k=20):6.1f}")
    for name, encoder in encoders.items():
        z, z_test = image.features(encoder, data.x), image.features(encoder, test.x)
        print(f"{name:22}{image.knn(z, data.y, z_test, test.y, k=20):6.1f}")

# %% [markdown]
# ## What it means
#
# On the digits, a few seconds of training take the network far beyond its initial weights. But the pixels of these
# tiny, centered pictures are hard to beat, and a network this small, trained this briefly, does not beat them. On
# photos pixels are a poor measure, and this row falls behind.
#
# Do not read a winner from the last two rows: they are one seed each, with one temperature. `counterpoint train image
# --data my_photos --objective infonce:t=0.2 adnce:t=0.2 --seeds 5` compares them with intervals.
