#!/usr/bin/env bash
# The unmodified image part of ADNCE on 20 random images: its own loss compared for five steps, then another objective.
#
#   smoke.sh [CLONE]       without CLONE it is fetched; what is given is copied, never changed
#   PYTHON, OBJECTIVE, ESTIMATOR      interpreter, what to train with, and the host's loss to compare with
set -euo pipefail
python=${PYTHON:-python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ $# -gt 0 ]; then
    cp -r "$1" "$work/image"
else
    git clone --quiet --depth 1 https://github.com/junkangwu/ADNCE "$work/ADNCE"
    mv "$work/ADNCE/image" "$work/image"
fi
cd "$work/image"

"$python" - <<'PYTHON'
import pickle
from pathlib import Path

import numpy as np

folder = Path("data/cifar-10-batches-py")
folder.mkdir(parents=True)
draw = np.random.default_rng(0)
for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
    batch = {"data": draw.integers(0, 256, (4, 3072), dtype=np.uint8), "labels": [0, 1, 2, 3]}
    (folder / name).write_bytes(pickle.dumps(batch))
(folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
PYTHON
# random images have other checksums than CIFAR-10
mkdir "$work/site"
cat >"$work/site/sitecustomize.py" <<'PYTHON'
import torchvision.datasets.cifar

torchvision.datasets.cifar.check_integrity = lambda *_: True
PYTHON

PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH} "$python" -m counterpoint.plugins.inject adnce_image \
    --objective "${OBJECTIVE:-adnce:t=0.5,mu=0.7}" --verify 5 -- main.py --dataset_name cifar10 --root data \
    --estimator "${ESTIMATOR:-easy}" --batch_size 4 --epochs 2 --num_workers 0
