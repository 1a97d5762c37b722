"""``counterpoint inject auto``: find a script's losses by its calls of torch, autograd's graph and gradients."""
