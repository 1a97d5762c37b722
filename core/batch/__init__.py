"""From a batch to what an objective sees: embeddings, pairings, ready-made scores."""
