"""What ``counterpoint inject auto`` sees of a script: calls of torch, autograd's graph and gradients."""
