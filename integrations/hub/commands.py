"""``counterpoint push``; the parser needs neither torch nor a framework."""

import argparse
import json
import re
import tempfile
from pathlib import Path

from .. import flags


def push_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    folder = "folder of a finished run of sentences, images or graphs"
    add("run", type=lambda text: flags.store(text, written=False), help=folder)
    add("name", type=_name, help="owner/name on the hub")
    write_only = "write what would be pushed to this folder, and push nothing (none)"
    add("--folder", type=flags.folder, metavar="FOLDER", help=write_only)
    add("--private", action="store_true", help="create a private repository, if there is none of that name")
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(check=lambda arguments: flags.check_runs([arguments.run]))


def _name(text: str) -> str:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        raise argparse.ArgumentTypeError(f"expected owner/name, got {text!r}")
    return text


def push_command(arguments: argparse.Namespace) -> int:
    """Push the one run in and below a folder or a URL, or write the folder that would be pushed."""
    from . import encoder  # noqa: F401  names the extra to install  # isort: skip
    from huggingface_hub import HfApi

    from ..store.run import Run, find_runs
    from .folder import write

    place = arguments.run
    runs = [Run.read(place)] if isinstance(place, Path) and (place / "run.json").is_file() else find_runs(place)
    if len(runs) != 1:
        such = f"; such as {runs[0].address}" if runs else ""
        raise ValueError(f"{place}: expected the folder of one run, got {len(runs)}{such}")
    (run,) = runs
    if arguments.folder is not None:
        place = str(write(run, arguments.name, arguments.folder))
        written = {"run": run.address, "folder": place}
        print(json.dumps(written, indent=1) if arguments.json else f"wrote {place}; nothing was pushed")
        return 0
    hub = HfApi()
    with tempfile.TemporaryDirectory() as folder:
        write(run, arguments.name, Path(folder))
        try:
            hub.create_repo(arguments.name, private=arguments.private or None, exist_ok=True)
            hub.upload_folder(repo_id=arguments.name, folder_path=folder, commit_message=f"Add {run.title}"[:72])
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(f"{arguments.name}: cannot be pushed ({lines[0]})") from error
    place = f"hf://{arguments.name}"
    pushed = {"run": run.address, "pushed": place}
    print(json.dumps(pushed, indent=1) if arguments.json else f"pushed {run.title} to {place}", flush=True)
    return 0
