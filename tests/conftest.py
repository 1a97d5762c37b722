import os
import shutil
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path

# Before NumPy and torch are imported: the tests run beside each other, and what they start inherits it. Threads that
# wait for each other on busy cores cost more time than they save.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

# Tests import modules of these folders by name; the repository root stays off the path.
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/support", "examples", "examples/studies", "docs")]

torch.set_num_threads(1)

# Triton reads this once, on import: without a GPU, tests/experimental/test_fused.py interprets the kernels.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def remembered(find):
    """Look entry points up once per state of the path: a lookup reads the metadata of every installed package.

    Each script that a test injects into needs several. Like importlib's own cache, this one goes by the times at which
    the folders changed.
    """
    known = {}

    def installed(place):
        return os.path.isdir(place) and any(name.endswith((".dist-info", ".egg-info")) for name in os.listdir(place))

    def entry_points(**how):
        places = [os.path.abspath(place) for place in sys.path]
        key = (*((place, os.stat(place).st_mtime_ns) for place in places if installed(place)), *sorted(how.items()))
        if key not in known:
            known[key] = find(**how)
        return known[key]

    return entry_points


metadata.entry_points = remembered(metadata.entry_points)


# The files that take longest, by folder; `pytest --durations=0` shows the times of their tests.
LONGEST = {
    "plugins": ["sentence_transformers", "styles", "auto", "logits", "causes", "inject", "soft_targets", "told"],
    "compare": ["scripts", "race"],
    "store": ["store"],
    "core": ["contract"],
    "graph": ["training", "evaluation"],
    "sentence": ["training", "mteb_tasks"],
    "image": ["training"],
}


def pytest_collection_modifyitems(items):
    """Test the site, wheels and notebooks first, which are built, then the files that take longest.

    Each process tests whole files: with a long one at the end, the other processes would wait for it.
    """

    def place(item):
        if item.path.parent == ROOT / "tests":
            return 0
        return 1 if item.path.stem.removeprefix("test_") in LONGEST.get(item.path.parent.name, ()) else 2

    items.sort(key=place)


@pytest.fixture(autouse=True)
def _no_mode_stays():
    """End what watches the calls of torch: in use it ends with the process of a script, which tests share."""
    yield
    while torch.overrides._get_current_function_mode_stack():
        mode = torch.overrides._get_current_function_mode()
        if not (hasattr(mode, "stop") and mode.stop()):
            torch.overrides._pop_mode()


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """Write a tiny checkpoint of transformers and return its folder."""
    import tiny_bert

    path = tmp_path_factory.mktemp("bert")
    tiny_bert.build(path)
    return path


@pytest.fixture(scope="session")
def frames():
    """Skip the test where dm_control cannot render frames."""
    try:
        from counterpoint.integrations.control import environment

        environment.check_frames()
    except (ImportError, OSError) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium: the one on the PATH, or playwright's own, which `playwright install chromium` downloads."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    playwright = pytest.importorskip("playwright.sync_api", reason="pages are looked at with playwright")
    with playwright.sync_playwright() as started:
        try:
            found = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium: {error.message.splitlines()[0]}")
        yield found
        found.close()


def pytest_terminal_summary(terminalreporter):
    """Say how many tests were skipped, and why."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
