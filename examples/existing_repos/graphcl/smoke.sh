#!/usr/bin/env bash
# The unmodified GraphCL on MUTAG, 20 epochs: its own loss compared for nine steps, then another objective.
#
#   smoke.sh [CLONE]       a clone's unsupervised_TU; without it, it is fetched; what is given is copied, never changed
#   PYTHON, OBJECTIVE      interpreter, and what to train with
#   COUNTERPOINT_DATA      a folder with tu/MUTAG/raw; without it, PyTorch Geometric downloads MUTAG
set -euo pipefail
python=${PYTHON:-python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ $# -gt 0 ]; then
    cp -r "$1" "$work/clone"
else
    git clone --quiet --depth 1 https://github.com/Shen-Lab/GraphCL "$work/GraphCL"
    mv "$work/GraphCL/unsupervised_TU" "$work/clone"
fi
cd "$work/clone"

raw=${COUNTERPOINT_DATA:-}/tu/MUTAG/raw
if [ ! -d "$raw" ]; then
    "$python" -W ignore -c "from torch_geometric.datasets import TUDataset; TUDataset('$work/tu', 'MUTAG')"
    raw=$work/tu/MUTAG/raw
fi
rm -rf data/MUTAG # what another version of PyTorch Geometric has processed
mkdir -p logs data/MUTAG/MUTAG
cp -r "$raw" data/MUTAG/MUTAG/raw
chmod -R u+w data

"$python" -W ignore -m counterpoint.plugins.inject graphcl \
    --objective "${OBJECTIVE:-adnce:t=0.2,mu=0.7}" --verify 9 -- gsimclr.py --DS MUTAG --lr 0.01 \
    --local --num-gc-layers 3 --aug random2 --seed 0
