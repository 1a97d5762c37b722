"""Measure data and embeddings, and say which objective to try, with the evidence.

``counterpoint advise`` does so for files. In Python, with two views of each sample as arrays ``(N, d)``::

    from counterpoint.integrations.advise.advice import advise
    from counterpoint.integrations.advise.data import from_arrays
    from counterpoint.integrations.advise.measure import measure
    from counterpoint.integrations.advise.settings import Settings

    measured, suspects = measure(from_arrays(a, b, ids), Settings())
    for one in advise(measured):
        print(one["text"])
"""
