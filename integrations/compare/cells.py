"""Cells of a comparison: the script, its arguments, the objective and the seed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterpoint.names import closest
from counterpoint.plugins.arguments import split_launcher

from ..secrets import redacted
from .settings import HOST, Settings

DOMAIN = "compare"


def cell(
    host: str,
    seam: Sequence[str],
    script: Sequence[str],
    code: str,
    settings: Settings,
    objective: str,
    seed: int,
    **more: object,
) -> dict[str, object]:
    """Return the arguments of one run.

    Args:
        host, seam: the host of ``counterpoint inject``, and its further flags.
        script: the script and its arguments, with ``{seed}`` and ``{out}`` where they stand; secrets are not stored.
        code: checksum of the script, since an edited script is another one; what it imports is not watched.
        objective: a treatment as it was typed; what it does not name is the host's.
        more: ``purpose`` of a run that chooses settings, ``label`` of a row, ``length`` and ``steps_flag`` of a run of
            another length, ``lines`` of one that is stopped when it has printed so many numbers ``of`` a metric.
    """
    first, *rest = split_launcher(script)[1]
    name = settings.name or (rest[0] if first == "-m" else Path(first).name)
    chosen = {key: getattr(settings, key) for key in ("seed_flag", "set_seed", "copy", "link")}
    chosen |= {"report": True} if settings.report else {}
    chosen |= {"host": host, "seam": [*seam], "script": redacted(script), "code": code, "like": HOST, **more}
    return {"domain": DOMAIN, "dataset": name, "objective": objective, "seed": seed, **chosen}


def words(arguments: dict[str, Any], script: Sequence[str], out: Path) -> list[str]:
    """Return the script and its arguments, as they were typed, as a run has them."""
    script, seed = [*script], str(arguments["seed"])
    if arguments.get("length") is not None:
        at, prefix, _ = length_of(script, arguments["steps_flag"])
        script[at] = f"{prefix}{arguments['length']:g}"
    script = [word.replace("{seed}", seed).replace("{out}", str(out)) for word in script]
    return [*script, *([arguments["seed_flag"], seed] if arguments["seed_flag"] else [])]


def length_of(script: Sequence[str], flag: str) -> tuple[int, str, float]:
    """Return the index of the word with the script's length, the part of the word before it, and the length."""
    for at, word in reversed([*enumerate(script)]):  # of a repeated flag, the last one counts
        name, equals, text = word.partition("=")
        if name != flag or not (equals or at + 1 < len(script)):
            continue
        at, prefix, text = (at, f"{flag}=", text) if equals else (at + 1, "", script[at + 1])
        try:
            return at, prefix, float(text)
        except ValueError:
            raise ValueError(f"--steps-flag {flag}: expected a number behind it, got {text!r}") from None
    hint = closest(flag, [word.partition("=")[0] for word in script if word.startswith("-")])
    raise ValueError(f"--steps-flag {flag}: it is not among the script's own arguments, -- train.py {flag} 400.{hint}")
