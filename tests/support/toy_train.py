"""A training script as users have them: embed noisy points of ten classes, and store how well they are told apart.

Nine in ten negatives are of another class, one in ten is false, and at a temperature of 0.02 the false ones count most.

python toy_train.py --seed 0 [--steps 60] [--out FOLDER]
"""

import argparse
import json
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, normalize

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--out", type=Path, default=Path("."))
args = parser.parse_args()
torch.manual_seed(args.seed)
torch.set_num_threads(1)
centres = torch.randn(10, 16, generator=torch.Generator().manual_seed(1))
model = torch.nn.Linear(32, 8)


def embed(labels):
    points, nuisance = centres[labels] + 1.6 * torch.randn(len(labels), 16), 3 * torch.randn(len(labels), 16)
    return normalize(model(torch.cat([points, nuisance], 1)))


def accuracy():
    known, new = torch.arange(10).repeat(64), torch.arange(10).repeat(128)
    means = normalize(torch.stack([part.mean(0) for part in embed(known).view(64, 10, 8).unbind(1)]))
    return 100 * ((embed(new) @ means.T).argmax(1) == new).float().mean().item()


for _ in range(args.steps):
    labels = torch.randint(10, (64,))
    a, b = embed(labels), embed(labels)
    loss = cross_entropy(50 * a @ b.T, torch.arange(64))
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.5 * parameter.grad
with torch.no_grad():
    results = {"dev": accuracy(), "test": accuracy()}
(args.out / "results.json").write_text(json.dumps(results))
print(f"accuracy: {results['test']:.2f}")
