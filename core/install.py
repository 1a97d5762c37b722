"""Say how to install an extra, from where counterpoint came; imports no torch."""

import json
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

# the name on package indexes, where `counterpoint` is another project
DISTRIBUTION = "counterpoint-losses"


def install(extra: str) -> str:
    """Return the command that installs an extra.

    An installer records where it took a package from in ``direct_url.json`` (PEP 610), unless that was an index.
    """
    name = f"{DISTRIBUTION}[{extra}]"
    # uv's environments have none; find_spec would make setuptools, which patches it, fail when it is imported later
    pip = "pip install" if any(metadata.distributions(name="pip")) else "uv pip install"
    # in a clone, the folder of its last build is found too, which has no such file
    found = (package.read_text("direct_url.json") for package in metadata.distributions(name=DISTRIBUTION))
    origin = json.loads(next(filter(None, found), "{}"))
    url = origin.get("url", "")
    folder = Path(url2pathname(urlsplit(url).path))
    if vcs := origin.get("vcs_info"):
        place = f"{name} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
        return f"{pip} {shlex.quote(place)}"
    if "dir_info" not in origin or not folder.is_dir():  # a wheel: pip finds the package that is already installed
        return f"{pip} {shlex.quote(name)}"
    editable = "-e " * bool(origin["dir_info"].get("editable"))
    return f"{pip} {editable}{shlex.quote(f'{folder}[{extra}]')}"
