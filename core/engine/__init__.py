"""How negatives are reduced: a matrix, tiles, a ring of processes, GPU kernels. Private."""
