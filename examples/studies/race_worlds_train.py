"""Train an encoder of questions on frozen features, in a world with a fault; `race_worlds.py` races it as it stands.

A question's positive is another question of its intent (BANKING77). Worlds:

  topics   six intents in a batch of 66, so that a sixth of an anchor's keys are false negatives
  mined    four hard negatives for each of 32 questions, two of which have its intent
  wrong    40 % of the positives have another intent
  copies   each of 16 pairs stands in the batch four times
  clean    64 questions, no two of one intent
"""

import argparse
import json

import torch
import torch.nn.functional as F
from torch import Tensor

INTENTS, PER_INTENT = 77, 20


def batches(world: str, x: Tensor, steps: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the anchors (steps, B), of their positives, and of hard negatives (steps, H)."""
    first = torch.stack([torch.randperm(INTENTS, generator=g) for _ in range(steps)])
    if world == "topics":
        intent = first[:, :6].repeat_interleave(11, 1)
        place = torch.rand(steps, 6, PER_INTENT, generator=g).argsort(2)[:, :, :11].flatten(1)
    else:
        intent = first[:, : {"mined": 32, "copies": 16}.get(world, 64)]
        place = torch.randint(PER_INTENT, intent.shape, generator=g)
    anchors = intent * PER_INTENT + place
    positives = intent * PER_INTENT + (place + torch.randint(1, PER_INTENT, place.shape, generator=g)) % PER_INTENT
    hard = anchors[:, :0]
    if world == "copies":
        anchors, positives = anchors.repeat(1, 4), positives.repeat(1, 4)
    if world == "wrong":
        wrong = torch.rand(positives.shape, generator=g) < 0.4
        positives = torch.where(wrong, torch.randint(len(x), positives.shape, generator=g), positives)
    if world == "mined":
        label = torch.arange(len(x)) // PER_INTENT
        same = label.unsqueeze(1) == label
        near = (x @ x.T).masked_fill(same, -2.0).topk(10).indices[anchors]
        near = near.gather(2, torch.rand(near.shape, generator=g).topk(2).indices)
        false = torch.randint(PER_INTENT, (*anchors.shape, 2), generator=g) + (
            anchors // PER_INTENT * PER_INTENT
        ).unsqueeze(2)
        hard = torch.cat([near, false], 2).flatten(1)
    return anchors, positives, hard


def ndcg(queries: Tensor, query_labels: Tensor, documents: Tensor) -> float:
    """nDCG@10 in percent of retrieving training questions of the query's intent."""
    near = (F.normalize(queries, dim=1) @ F.normalize(documents, dim=1).T).topk(10).indices
    gain = (near // PER_INTENT == query_labels.unsqueeze(1)) / torch.arange(2.0, 12).log2()
    return 100 * (gain.sum(1) / (1 / torch.arange(2.0, 12).log2()).sum()).mean().item()


def train(data: dict[str, Tensor], world: str, steps: int, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    by_intent = [(data["train_y"] == c).nonzero().squeeze(1) for c in range(INTENTS)]
    x = data["train"][
        torch.cat([rows[10:][torch.randperm(len(rows) - 10, generator=g)[:PER_INTENT]] for rows in by_intent])
    ]
    encoder = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 256), torch.nn.ReLU(), torch.nn.Linear(256, 128))
    optimizer = torch.optim.Adam(encoder.parameters(), 1e-3)
    for anchors, positives, hard in zip(*batches(world, x, steps, g), strict=True):
        keys = x[torch.cat([positives, hard])]
        q, k = F.normalize(encoder(x[anchors]), dim=1), F.normalize(encoder(keys), dim=1)
        loss = F.cross_entropy(q @ k.T / 0.05, torch.arange(len(anchors)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        documents = encoder(x)
        held_out = torch.cat([rows[:10] for rows in by_intent])
        return {
            "validation": ndcg(encoder(data["train"][held_out]), data["train_y"][held_out], documents),
            "test": ndcg(encoder(data["test"]), data["test_y"], documents),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="questions.pt", help="features and intents, as race_worlds.py writes them")
    parser.add_argument("--world", default="clean")
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1, help="seeds to train one after the other")
    parser.add_argument("--out", default="results.json")
    arguments = parser.parse_args()
    data = torch.load(arguments.data, weights_only=True)
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    results = [train(data, arguments.world, arguments.steps, seed) for seed in seeds]
    with open(arguments.out, "w") as file:
        json.dump({**{k: sum(r[k] for r in results) / len(results) for k in results[0]}, "seeds": results}, file)
