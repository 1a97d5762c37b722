"""GPU kernels that ``engine="fused"`` asks for; they have run in Triton's interpreter, but not on a GPU yet."""
