#!/usr/bin/env bash
# lightly's unmodified example scripts on random images: their own loss compared for five steps, then another objective.
#
#   smoke.sh [CLONE]       without CLONE it is fetched; its scripts are only read
#   PYTHON, OBJECTIVE      interpreter, and what to train with
set -euo pipefail
python=${PYTHON:-python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ $# -gt 0 ]; then
    clone=$(realpath "$1")
else
    clone=$work/clone
    git clone --quiet --depth 1 https://github.com/lightly-ai/lightly "$clone"
fi

# The scripts download CIFAR-10 and take 256 images a step with eight workers; here it is eight of 16 random images.
mkdir "$work/site"
cat >"$work/site/sitecustomize.py" <<'PYTHON'
import torch
import torchvision


def random_images(root, transform=None, **_):
    return torchvision.datasets.FakeData(16, (3, 32, 32), transform=transform)


def small_batches(dataset, **_):
    return loader(dataset, batch_size=8, shuffle=True, drop_last=True)


torch.set_num_threads(1)
torchvision.datasets.CIFAR10 = random_images
loader, torch.utils.data.DataLoader = torch.utils.data.DataLoader, small_batches
PYTHON

cd "$work"
for script in simclr moco; do
    PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH} "$python" -m counterpoint.plugins.inject lightly \
        --objective "${OBJECTIVE:-hcl:t=0.5}" --verify 5 -- "$clone/examples/pytorch/$script.py"
done
