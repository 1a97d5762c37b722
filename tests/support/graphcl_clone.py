"""A stand-in for clones of GraphCL and of its fork in ADNCE, with a small TU data set."""

from __future__ import annotations

from pathlib import Path

import torch

AUG = """
import os
from copy import deepcopy

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.io import read_tu_data


class TUDataset_aug(torch.utils.data.Dataset):
    def __init__(self, root, name, aug=None, noise_ratio=None):
        self.aug, self.noise_ratio = aug, noise_ratio
        graphs, slices = read_tu_data(os.path.join(root, name, "raw"), name)
        torch.save((graphs, slices), os.path.join(root, "graphs.pt"))
        self.graphs, self.slices = torch.load(os.path.join(root, "graphs.pt"))

    def __len__(self):
        return len(self.slices["x"]) - 1

    def __getitem__(self, i):
        one = Data()
        for key in self.graphs.keys:
            start, end = self.slices[key][i : i + 2].tolist()
            one[key] = self.graphs[key].narrow(1 if key == "edge_index" else 0, start, end - start)
        loops = torch.arange(len(one.x)).repeat(2, 1)
        one.edge_index = torch.cat([one.edge_index, loops], 1)
        copy = deepcopy(one)
        if self.aug == "random2":
            options = [drop_nodes, subgraph]
            how = () if self.noise_ratio is None else (self.noise_ratio,)
            return one, options[np.random.randint(2)](copy, *how)
        return one, {"dnodes": drop_nodes, "pedges": permute_edges, "mask_nodes": mask_nodes}.get(self.aug, same)(copy)


def without(data, dropped):
    # nodes stay, their edges go
    keep = ~torch.isin(data.edge_index, dropped).any(0)
    data.edge_index = data.edge_index[:, keep]
    return data


def same(data):
    return data


def drop_nodes(data, share=0.2):
    return without(data, torch.arange(int(len(data.x) * share)))


def subgraph(data, share=0.2):
    return without(data, torch.tensor(np.random.permutation(len(data.x))[: int(len(data.x) * share)]))


def permute_edges(data):
    data.edge_index = data.edge_index[:, np.random.permutation(data.edge_index.shape[1])[3:]]
    return data


def mask_nodes(data):
    data.x[0] = torch.tensor(np.random.normal(size=data.x.shape[1]), dtype=torch.float32)
    return data
"""

SCRIPT = """
import argparse
import random

import numpy as np
import torch
from aug import TUDataset_aug as TUDataset
from torch import nn
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool


class Encoder(nn.Module):
    def __init__(self, width, hidden, layers):
        super().__init__()
        widths = [width] + [hidden] * layers
        self.convs = nn.ModuleList(GINConv(nn.Linear(a, b)) for a, b in zip(widths, widths[1:]))

    def forward(self, x, edge_index, batch):
        found = []
        for conv in self.convs:
            x = torch.tanh(conv(x, edge_index))
            found.append(x)
        return torch.cat([global_add_pool(h, batch) for h in found], 1), torch.cat(found, 1)


class simclr(nn.Module):
    def __init__(self, hidden_dim, num_gc_layers):
        super().__init__()
        width = hidden_dim * num_gc_layers
        self.encoder = Encoder(dataset_num_features, hidden_dim, num_gc_layers)
        self.proj_head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x, edge_index, batch, num_graphs):
        return self.proj_head(self.encoder(x.to(next(self.parameters()).dtype), edge_index, batch)[0])

%(loss)s


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--DS")
    parser.add_argument("--aug", default="dnodes")
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--hidden-dim", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
%(arguments)s
    args = parser.parse_args()
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    dataset = TUDataset("data/" + args.DS, name=args.DS, aug=args.aug%(strength)s)
    dataset_num_features = dataset[0][0].x.shape[1]
    dataloader = DataLoader(dataset, batch_size=args.batch)
    model = simclr(args.hidden_dim, 3)
    if args.double:
        model.double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    model.train()
    for data, data_aug in dataloader:
        optimizer.zero_grad()
        x = model(data.x, data.edge_index, data.batch, data.num_graphs)
        if args.aug in ("dnodes", "random2"):
            ends = data_aug.edge_index.tolist()
            kept = sorted(set(ends[0] + ends[1]))
            place = {node: i for i, node in enumerate(kept)}
            data_aug.x, data_aug.batch = data_aug.x[kept], data.batch[kept]
            data_aug.edge_index = torch.tensor([[place[a], place[b]] for a, b in zip(*ends) if a != b]).T
        x_aug = model(data_aug.x, data_aug.edge_index, data_aug.batch, data_aug.num_graphs)
        loss = model.loss_cal(%(call)s)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
"""

GRAPHCL = {
    "loss": """
    def loss_cal(self, x, x_aug):
        logits = nn.functional.normalize(x) @ nn.functional.normalize(x_aug).T / 0.2
        others = logits.masked_fill(torch.eye(len(x), dtype=torch.bool), float("-inf"))
        return (others.logsumexp(1) - logits.diagonal()).mean()
""",
    "arguments": "",
    "strength": "",
    "call": "x, x_aug",
}

FORK = {
    "loss": """
    def loss_cal(self, x, x_aug, mode, args):
        cos = nn.functional.normalize(x) @ nn.functional.normalize(x_aug).T
        own = torch.eye(len(x), dtype=torch.bool)
        weight = torch.ones_like(cos)
        if mode == "adnce":
            weight = (-0.5 * ((cos.detach() - args.w1) / args.w2) ** 2).exp()
        elif mode != "easy":
            raise NotImplementedError
        weight = weight.masked_fill(own, 0)
        mass = (weight * (cos / args.temp).exp()).sum(1) / weight.sum(1)
        return (mass.log() - cos.diagonal() / args.temp).mean()
""",
    "arguments": """
    parser.add_argument("--mode")
    parser.add_argument("--temp", type=float)
    parser.add_argument("--w1", type=float)
    parser.add_argument("--w2", type=float)
    parser.add_argument("--noise_ratio", type=float)
""",
    "strength": ", noise_ratio=args.noise_ratio",
    "call": "x, x_aug, args.mode, args",
}


def write_clone(folder: Path, script: str = "gsimclr.py", graphs: int = 24) -> Path:
    """A stand-in for a clone, with a small data set in the files of the TU collection."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "aug.py").write_text(AUG)
    (folder / script).write_text(SCRIPT % (GRAPHCL if script == "gsimclr.py" else FORK))
    write_data(folder / "data" / "TOY" / "TOY" / "raw", "TOY", graphs)
    return folder


def write_data(folder: Path, name: str, graphs: int) -> None:
    """Rings of ten nodes with chords, in two classes."""
    made = torch.Generator().manual_seed(0)
    edges: list[tuple[int, int]] = []
    for graph in range(graphs):
        pairs = {(i, (i + 1) % 10) for i in range(10)}
        for _ in range(3 + 4 * (graph % 2)):
            a, b = torch.randperm(10, generator=made)[:2].tolist()
            pairs.add((a, b))
        both = sorted(pairs | {(b, a) for a, b in pairs})
        edges += [(10 * graph + a + 1, 10 * graph + b + 1) for a, b in both]
    kinds = torch.randint(3, (10 * graphs,), generator=made).tolist()
    files = {
        "A": [f"{a}, {b}" for a, b in edges],
        "graph_indicator": [str(i // 10 + 1) for i in range(10 * graphs)],
        "graph_labels": [str(2 * (i % 2) - 1) for i in range(graphs)],
        "node_labels": [str(kind) for kind in kinds],
    }
    folder.mkdir(parents=True)
    for what, lines in files.items():
        (folder / f"{name}_{what}.txt").write_text("\n".join(lines) + "\n")
