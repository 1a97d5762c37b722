"""Command lines that are safe to show: no keys, tokens and passwords.

A name says whether its value is a secret: ``--password``, ``--wandb-key``, ``API_TOKEN=...``. Names that are also used
for settings, such as ``--label-key`` and ``--mask-token``, say so only if the value is long and looks random.
"""

import re
from collections.abc import Sequence

REDACTED = "REDACTED"
OWNED = "key|token|auth"  # of somebody, or else by their value
OWNERS = "api|access|account|auth|aws|azure|comet|gcs|github|hf|hub|license|neptune|openai|private|s3|secret|service"
OWNERS += "|ssh|wandb"
ALWAYS = rf"secret|password|passwd|passphrase|credentials?|apikey|(?:{OWNERS})[-_.]?(?:{OWNED})"
NAME = re.compile(rf"(?:^|[-_.])(?:{ALWAYS})$", re.IGNORECASE)
PERHAPS = re.compile(rf"(?:^|[-_.])(?:{OWNED})$", re.IGNORECASE)
RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=_-]{20,}")
USER = re.compile(r"(://)[^/@\s]+@")  # a name and a password in a URL


def redacted(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with ``REDACTED`` for each secret; there are as many words."""
    shown, flag = [], ""
    for word in words:
        name, equals, value = word.partition("=")
        if equals and _is_secret(name.lstrip("-"), value):
            shown.append(f"{name}={REDACTED}")
        elif not word.startswith("-") and _is_secret(flag, word):
            shown.append(REDACTED)
        else:
            shown.append(USER.sub(rf"\1{REDACTED}@", word))
        flag = word.lstrip("-") if word.startswith("-") and not equals else ""
    return shown


def _is_secret(name: str, value: str) -> bool:
    """Return whether the value of a flag or variable of this name is a secret."""
    return bool(value and (NAME.search(name) or (PERHAPS.search(name) and RANDOM.fullmatch(value))))
