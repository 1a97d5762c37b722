"""``counterpoint compare``: objectives compared in a script of your own, which nobody edits.

Each objective and seed is a cell of the store: a process that runs the script through ``counterpoint inject``. Beside
the files of every run, the folder of a cell holds::

    log.txt       what the script printed
    out/          the folder that {out} stands for in the script's arguments, and copies of the files that metrics read
    ended.json    how often the loss was reached, and the times; written when the script has ended well
    work/         with --copy: where the script runs, deleted when the run is done

A comparison is started from the command line. In Python, read its finished runs, whose statistics are those of any
other run::

    from counterpoint.integrations import report, store

    report.summarise(store.find_runs("runs"))
"""
