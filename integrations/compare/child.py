"""The process of one run: ``counterpoint inject``, with a seed, with functions that measure, ended with its parent.

It is started as ``python -m counterpoint.integrations.compare.child REQUEST HOST ... -- train.py ...``.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(words: Sequence[str]) -> int:
    """Run the script; return the exit code of ``counterpoint inject``."""
    request: dict[str, Any] = json.loads(words[0])
    signal.signal(signal.SIGTERM, _exit)  # a run that is stopped early writes its counts
    if sys.path[0] in ("", os.getcwd()):  # which -m puts there, but not python train.py
        del sys.path[0]
    from counterpoint.plugins import inject

    inject.end_with(request["parent"])

    from .. import store
    from .metrics import Metric, function

    measures = {metric.text: function(metric) for metric in (Metric(*parts) for parts in request["measure"])}
    if request["seed"] is not None:
        store.seed_everything(request["seed"])
    code = inject.main(words[1:])
    if code == 0 and measures:
        numbers = {text: measure(sys.modules["__main__"]) for text, measure in measures.items()}
        Path(request["scores"]).write_text(json.dumps(store.as_json(numbers)), encoding="utf-8")
    return code


def _exit(number: int, _: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
