"""How negatives are reduced: a matrix, tiles, chunks, GPU kernels. Private."""
