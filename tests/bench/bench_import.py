"""What `import counterpoint` costs beyond `import torch`, in fresh interpreters, interleaved.

python tests/bench/bench_import.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys

CODE = """
import time, torch
start = time.perf_counter()
import counterpoint
print(time.perf_counter() - start)
"""


def main() -> None:
    times = [float(subprocess.check_output([sys.executable, "-c", CODE])) for _ in range(9)]
    middle, best = 1000 * statistics.median(times), 1000 * min(times)
    print(f"import counterpoint after torch: median {middle:.1f} ms, best {best:.1f} ms")


if __name__ == "__main__":
    main()
