"""The command ``counterpoint``, which Ctrl-C ends without a traceback also while it imports torch, for seconds.

It is outside of the package, since whoever imports a part of that imports torch first.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings


def _stop(*_: object) -> None:
    os.write(2, b"counterpoint: stopped; nothing was done yet\n")
    os._exit(130)


def _streams() -> None:
    """Nothing that is said fails for the place where it is said: a closed stream, or one that has no letter for it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main() -> int:
    """Runs one command; see :func:`counterpoint.integrations.command.main.main`."""
    _streams()
    interrupt = signal.getsignal(signal.SIGINT)
    heard = interrupt is signal.default_int_handler  # under nohup it is not
    if heard:
        signal.signal(signal.SIGINT, _stop)
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # torch's, where no extra is installed
    from counterpoint.integrations.command import main

    if heard:
        signal.signal(signal.SIGINT, interrupt)
    code = main.main()
    if heard:  # all is done but for Python's own end, which would show a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code
