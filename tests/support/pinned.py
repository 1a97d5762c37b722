"""What this environment has installed, as constraints: names and versions, without local parts of versions."""

import re
from importlib import metadata

print("# made by `make constraints` on Python 3.11; used by PINNED=1 and by `pip install -c constraints.txt ...`")
found = {
    re.sub("[-_.]+", "-", one.metadata["Name"]).lower(): one.version.partition("+")[0]
    for one in metadata.distributions()
}
for name, version in sorted(found.items()):
    if name != "counterpoint-losses" and not name.startswith(("cuda-", "nvidia-", "triton")):  # which come with torch
        print(f"{name}=={version}")
