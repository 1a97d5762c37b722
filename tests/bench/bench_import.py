"""What `import counterpoint` costs, alone and with all public names beyond `import torch`; and `counterpoint --help`.

python tests/bench/bench_import.py

Each start is a fresh interpreter; the starts are interleaved.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

TIMED = """
import sys, time
{before}
start = time.process_time()
{code}
print(time.process_time() - start, file=sys.stderr)
"""
CASES = {
    "import counterpoint": ("", "import counterpoint"),
    "all public names, after torch": ("import torch", "from counterpoint import *"),
    "counterpoint --help": (
        "sys.argv = ['counterpoint', '--help']",
        "try:\n    from counterpoint.integrations.command.main import main; main()\nexcept SystemExit:\n    pass",
    ),
}


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(9):
        for name, (before, code) in CASES.items():
            command = [sys.executable, "-c", TIMED.format(before=before, code=code)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            times[name].append(1000 * float(done.stderr.splitlines()[-1]))
    for name, seconds in times.items():
        print(f"{name}: median {statistics.median(seconds):.1f} ms of CPU, best {min(seconds):.1f} ms")


if __name__ == "__main__":
    main()
