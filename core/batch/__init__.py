"""From a batch to the scores of an objective: embeddings, pairings, ready-made scores."""
