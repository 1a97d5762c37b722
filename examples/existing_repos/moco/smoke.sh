#!/usr/bin/env bash
# The unmodified MoCo on 16 random images, two processes: its own loss compared for four steps, then another objective.
#
#   smoke.sh [CLONE]       without CLONE it is fetched; what is given is copied, never changed
#   PYTHON, OBJECTIVE      interpreter, and what to train with
set -euo pipefail
python=${PYTHON:-python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ $# -gt 0 ]; then
    cp -r "$1" "$work/clone"
else
    git clone --quiet https://github.com/facebookresearch/moco "$work/clone"
    git -C "$work/clone" checkout --quiet 3b42c2a # later commits have no code
fi
cd "$work/clone"

"$python" - <<'PYTHON'
from pathlib import Path

import numpy as np
from PIL import Image

draw = np.random.default_rng(0)
for i in range(16):
    file = Path("data/train", str(i % 2), f"{i}.png")
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(file)
PYTHON
mkdir "$work/site"
if ! "$python" -c "import sys, torch; sys.exit(torch.cuda.device_count() < 2)"; then
    # MoCo runs on CUDA devices only; where there are no two, they are pretended to be there, in spawned processes too
    cat >"$work/site/sitecustomize.py" <<'PYTHON'
import torch
import torch.nn.parallel

torch.set_num_threads(1)
torch.cuda.device_count = lambda: 2
torch.cuda.set_device = lambda device: None
torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *args, **how: self
make = torch.nn.parallel.DistributedDataParallel.__init__
torch.nn.parallel.DistributedDataParallel.__init__ = lambda self, module, device_ids=None: make(self, module)
PYTHON
fi

PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH} "$python" -m counterpoint.plugins.inject moco \
    --objective "${OBJECTIVE:-hcl:t=0.4,prior=0.05}" --verify 4 -- main_moco.py --arch resnet18 --mlp --moco-t 0.2 \
    --moco-k 16 --batch-size 4 --epochs 2 --workers 0 --print-freq 1 --multiprocessing-distributed --world-size 1 \
    --rank 0 --dist-backend gloo --dist-url "file://$work/rendezvous" data | { grep -v "^ \|^)" || true; }
