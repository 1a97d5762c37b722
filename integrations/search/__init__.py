"""Search the parameters of objectives with equal budgets: ``counterpoint tune``, and ``--tune`` of ``compare``.

A search is an iterator: it yields the specs to measure next, and the caller adds their scores to a dict before it
continues. :func:`.coordinate.coordinate` searches along one parameter after the other; :func:`.study.shared` chooses
with Optuna, from a study that several processes may share.
"""
