"""Train an encoder by a contrastive loss on pairs of which several in a batch may be copies of one another."""

import argparse
import json

import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--count", type=int, default=1, help="seeds to train one after the other")
parser.add_argument("--out", default="results.json")
parser.add_argument("--copies", type=int, default=4, help="of each document in a batch")
parser.add_argument("--every", type=int, default=0, help="steps between two lines of output")
arguments = parser.parse_args()


def train(seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    world = torch.Generator().manual_seed(7)
    documents, mixing = torch.randn(600, 24, generator=world), torch.randn(24, 24, generator=world)
    encode_query = torch.nn.Sequential(torch.nn.Linear(24, 64), torch.nn.ReLU(), torch.nn.Linear(64, 24))
    encode_document = torch.nn.Linear(24, 24)
    optimizer = torch.optim.Adam([*encode_query.parameters(), *encode_document.parameters()], 3e-3)

    def queries(of: torch.Tensor) -> torch.Tensor:
        return torch.tanh(documents[of] @ mixing / 5) + 0.3 * torch.randn(len(of), 24)

    def evaluate() -> dict[str, float]:
        test = torch.arange(400, 600).repeat(5)
        scores = F.normalize(encode_query(queries(test)), dim=1) @ F.normalize(encode_document(documents), dim=1).T
        ranks = (scores > scores.gather(1, test.unsqueeze(1))).sum(1)
        return {"hits": 100 * (ranks == 0).float().mean().item(), "mrr": 100 * (1 / (1 + ranks)).mean().item()}

    for step in range(arguments.steps):
        doc = torch.randperm(400)[: 64 // arguments.copies].repeat(arguments.copies)
        q = F.normalize(encode_query(queries(doc)), dim=1)
        d = F.normalize(encode_document(documents[doc]), dim=1)
        logits = q @ d.T / 0.05
        loss = F.cross_entropy(logits, torch.arange(len(doc)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if arguments.every and (step + 1) % arguments.every == 0:
            with torch.no_grad():
                print("step", step + 1, "hits", evaluate()["hits"])
    with torch.no_grad():
        return evaluate()


results = [train(seed) for seed in range(arguments.seed, arguments.seed + arguments.count)]
with open(arguments.out, "w") as file:
    json.dump(results[0] | {"seeds": [result["hits"] for result in results]}, file)
