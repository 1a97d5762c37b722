"""Search the parameters of objectives with equal budgets: ``counterpoint tune``, and ``--tune`` of ``compare``."""
