"""Send the curves and results of runs to wandb, trackio, MLflow or TensorBoard, beside the store.

:func:`tracked` wraps a training function: each line that a run logs goes to every tracker too, through the tracker's
own asynchronous client, and so do its result and how it ended. A cell does not contain the names of trackers, so a run
is the same with and without them. A resumed run continues its curve: its identifier comes from the store, and lines
that the tracker lacks are sent again. The store stays complete; a tracker that fails is left out with a warning.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING

from counterpoint.install import install
from counterpoint.names import check_known
from counterpoint.plugins.printing import print_lines

if TYPE_CHECKING:
    from ..store.run import Run
    from .backends import Tracker

NAMES = ("wandb", "trackio", "mlflow", "tensorboard")  # of the trackers and of their packages


def check(names: Iterable[str]) -> None:
    """Raise before any training if a tracker cannot be used: it is missing, or its server does not answer."""
    from .backends import BACKENDS

    for name in names:
        check_known("--track: unknown tracker", name, BACKENDS)
        if sys.modules.get(name, name) is None or find_spec(name) is None:
            raise ImportError(f"--track {name}: {name} is not installed: {install('track')}")
        try:
            BACKENDS[name].check()
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ValueError(f"--track {name}: {reason}") from error


def tracked(train: Callable[[Run], None], names: Collection[str]) -> Callable[[Run], None]:
    """Wrap a training function so that its runs are sent to these trackers; without names, return it unchanged."""
    return partial(_train, train, tuple(dict.fromkeys(names))) if names else train


def _train(train: Callable[[Run], None], names: Sequence[str], run: Run) -> None:
    run.listener = sending = Sending(run, names)
    try:
        train(run)
    except BaseException as error:
        sending.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    finally:
        run.listener = None


class Sending:
    """Sends a run to trackers from its first line on, when it is known at which step a resumed run continues.

    A tracker that fails is left out with one warning.
    """

    def __init__(self, run: Run, names: Sequence[str]) -> None:
        self.run, self.names = run, names
        self.trackers: dict[str, Tracker] = {}
        self.begun = False  # with the first line

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send a line that the run has stored; with the first one, those before it that a tracker lacks."""
        if not self.begun:
            self._begin()
        else:
            self._each(lambda name: self.trackers[name].log(step, numbers))

    def finish(self, result: Mapping[str, float]) -> None:
        """Send the result, and end the trackers' runs."""
        if not self.begun:
            self._begin()
        self._each(lambda name: self.trackers[name].finish({f"result/{key}": value for key, value in result.items()}))
        self.end("done")

    def end(self, status: str) -> None:
        """End the trackers' runs as ``done``, ``interrupted`` or ``failed``, and wait until everything is sent."""
        self._each(lambda name: self.trackers.pop(name).close(status))

    def _begin(self) -> None:
        from .backends import BACKENDS, Subject

        self.begun, subject, lines = True, Subject(self.run), self.run.metrics()

        def begin(name: str) -> None:
            tracker = self.trackers[name] = BACKENDS[name](subject)
            for line in lines:
                if line["step"] > tracker.last:
                    tracker.log(int(line["step"]), {key: value for key, value in line.items() if key != "step"})

        self._each(begin, self.names)

    def _each(self, call: Callable[[str], object], names: Iterable[str] = ()) -> None:
        for name in names or [*self.trackers]:
            try:
                with redirect_stdout(StringIO()):  # the output of a command may be JSON
                    call(name)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                about = f"{name} has failed and is left out; the store has everything ({reason})"
                print_lines(f"warning: {self.run.title}: {about}", file=sys.stderr)
                with suppress(Exception):
                    self.trackers.pop(name).close("failed")
