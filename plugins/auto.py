"""Find the contrastive loss of an unmodified script: ``counterpoint inject auto -- train.py ...``.

Runs the first steps of the script, watches how its loss is computed, and says where it sits, of which form it is, and
which command or which line puts another objective there. Conclusions are compared with the script's own value and
gradient; what is ambiguous is named, with the candidates.
"""

import argparse
import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from . import registry, shims
from .arguments import split_launcher
from .finder.exponentials import OTHER_VIEW
from .finder.findings import judge
from .finder.recognise import SEVERAL
from .finder.records import Finding, Findings
from .finder.watch import EnoughError, Watch
from .finder.words import commands_of, host_temperature, in_words, is_sound, objective_of, spec_of
from .host import OWN_LOSS, PATIENCE, Host, Seam, SeamError, UnreachedError, is_first_process
from .launch import LAUNCHER, Script, run
from .printing import print_lines
from .sites import Site

FRAMEWORKS = ("jax", "flax", "tensorflow", "keras", "mlx")
STEPS = 3  # contrastive steps to watch
LARGE = 2**21  # logits of a step that takes long to judge


class _Steps:
    """The findings of all watched steps of this process, written to a file after each of them."""

    def __init__(self, seam: Seam) -> None:
        self.seam, self.file = seam, Path(seam.options["json"])
        self.steps = seam.options.get("steps") or STEPS
        self.losses: dict[tuple[Any, ...], Finding] = {}
        self.watch = Watch(self.step)
        self.ended = False
        self.errors: list[str] = []
        self.values: dict[str, set[int]] = {}  # of what a treatment could be told, by path

    def step(self, watch: Watch, root: Tensor) -> None:
        if self.ended:  # a bare except has caught the end
            raise EnoughError
        if (largest := max((sink.x.numel() for sink in watch.sinks), default=0)) > LARGE and not self.losses:
            text = f"counterpoint: to judge a step with {largest:,} logits may take minutes; --steps 1 watches one"
            print_lines(text, file=sys.stderr)
        try:
            found = judge(watch, root)
        except Exception as error:  # the script must not fail where only the finder does
            self.errors.append(f"{type(error).__name__}: {error}")
            found = []
        for finding in found:
            key = finding["site"], finding["call"], finding["kind"]
            entry = self.losses.setdefault(key, {**finding, "steps": 0, "calls": 0, "scales": []})
            entry["calls"] += 1
            if "scale" in finding:
                entry["scales"].append(finding["scale"])
            entry["doubts"] += finding["doubts"]
            entry["weighted"] = entry.get("weighted", False) or finding.get("weighted", False)
            offsets = [float(each.get("offset") or 0.0) for each in (finding, entry)]
            if abs(offsets[0] - offsets[1]) > 1e-4 and not entry.get("bias_variable"):
                entry |= {"offset": None, "shifted": True}  # by a number that follows the batch
            before, now = ({each["form"], *each.get("fits", ())} for each in (entry, finding))  # one step may tell
            if entry["form"] in now:
                finding = finding | {"form": entry["form"]}
            elif finding["form"] in before:
                entry |= {"form": finding["form"], "in_denominator": finding["in_denominator"]}
            rivals = {*entry.get("rivals", ()), *finding.get("rivals", ())} & before & now - {entry["form"]}
            entry |= {"rivals": sorted(rivals), "fits": [name for name in entry.get("fits", ()) if name in now]}
            forms = {finding["form"], entry["form"]}
            if len(forms) == 2 and "infonce" in forms and (several := forms.intersection(SEVERAL)):
                entry |= {"form": several.pop(), "product": "", "replace": None}  # InfoNCE of single positives
            elif len(forms) == 2:
                entry["doubts"].append(f"its form is another in a later call: {finding['form'] or 'not known'}")
            for name in ("value_difference", "gradient_difference"):
                if name in finding:
                    entry[name] = max(entry.get(name, 0.0), finding[name])
            entry["ours"] &= finding["ours"]
            if finding["form"] and len({finding.get("positives"), entry.get("positives")} - {OTHER_VIEW}) > 1:
                entry["positives"] = "others in each call"
            if finding.get("columns") != entry.get("columns"):
                _find_columns(entry, finding)
            entry["replace"] = entry["replace"] if finding.get("replace") and entry.get("replace") else None
            entry["doubts"] = [*dict.fromkeys(entry["doubts"])]
            entry["told"] = {path: about for path, about in finding["told"].items() if path in entry["told"]}
            for path, about in finding["told"].items():
                self.values.setdefault(path, set()).add(about["_values"])
        for key in {(f["site"], f["call"], f["kind"]) for f in found}:
            self.losses[key]["steps"] += 1
        self.seam.calls += bool(found)
        if self.seam.calls == self.steps or (not self.seam.calls and watch.backwards == PATIENCE):
            self.ended = True
        self.write()
        if self.ended:
            raise EnoughError

    def finish(self) -> None:
        """Stop watching in this process."""
        self.watch.stop()
        if self.watch.backwards or not self.file.read_text():
            self.write()

    def write(self) -> None:
        if is_first_process():
            losses: list[Any] = [{**loss, "told": self._told(loss)} for loss in self.losses.values()]
            for loss in losses:
                alike = [f"batch and precision do not tell it from {name}" for name in loss.get("rivals", ())]
                loss["doubts"] = [*loss["doubts"], *alike]
            data = {
                "steps": self.seam.calls,
                "backwards": self.watch.backwards,
                "ended_early": not self.ended,
                "losses": losses,
                "errors": [*self.errors, *self.watch.errors],
                "survey": [{"site": s, "call": what, "times": n} for (s, what), n in self.watch.survey.items()],
            }
            self.file.write_text(json.dumps(data, indent=2, default=str))

    def _told(self, loss: Finding) -> dict[str, dict[str, Any]]:
        """Return the data that a treatment can name, without items of lists that stay: other batches of an epoch."""
        told, once = loss["told"], loss["steps"] < 2
        told = {k: v for k, v in told.items() if once or not re.search(r"\[\d+\]", k) or len(self.values[k]) > 1}
        return {path: {k: v for k, v in about.items() if k[0] != "_"} for path, about in told.items()}


def _find_columns(entry: Finding, finding: Finding) -> None:
    """Find the ``--positives`` of calls that differ: soft targets may ramp in, from ones and zeros."""
    both = entry.get("targets", []), finding.get("targets", [])
    entry["targets"] = [name for name in both[0] if name in both[1]]
    if not entry.get("columns") or not finding.get("columns"):
        entry["columns"] = None
    elif any(both):
        entry["columns"] = next(iter(entry["targets"]), None)
        entry["positives"] = f"soft targets {entry['columns']}"
    else:
        entry["columns"] = "gradient"


def before(seam: Seam) -> None:
    """Watch from here on."""
    steps = _Steps(seam)
    seam.at_end.append(steps.finish)
    steps.watch.start()


def run_and_conclude(
    host: Host, args: argparse.Namespace, script: Script, arguments: Sequence[str], words: Sequence[str]
) -> int:
    """Run the script until enough steps were watched, and say what was found; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "findings.json") if args.json is None else args.json.resolve()
        file.write_text("")
        options = {"steps": args.steps, "json": str(file), "shims": args.shims}
        seam = Seam(OWN_LOSS, options=options, quiet=not is_first_process())
        words, here, home = [*words], Path.cwd(), script.path.resolve().parent
        failure: BaseException | None = None
        try:
            if other := _other_framework(script.path):
                raise SeamError(f"{script.path.name} imports {other}, not torch: this is for torch only")
            run(host, seam, script, arguments, use_shims=not args.no_shims)
        except SeamError as error:
            print_lines(f"counterpoint: {error}", file=sys.stderr)
            return error.code
        except (Exception, SystemExit) as error:
            if not isinstance(error, SystemExit) or error.code:
                failure = error
        os.chdir(here)
        code = 0
        if not seam.quiet and file.read_text():
            objective = None if args.objective == OWN_LOSS else args.objective
            data: Findings = json.loads(file.read_text())
            data["failed"] = failure is not None
            changes = ["--no-shims"] if args.no_shims else ["--shims", args.shims] if args.shims else []
            apply = bool(args.apply) and failure is None
            launcher = shlex.split(os.environ.get(LAUNCHER, ""))
            code = conclude(data, objective, [*changes, "--", *launcher, *words], home, apply, args.only)
            data["errors"] += [f"{type(failure).__name__}: {failure}".partition("\n")[0]] * (failure is not None)
            file.write_text(json.dumps(data, indent=2))
    if failure is not None:
        for value, shim in () if args.shims or args.no_shims else dict(shims.curing(failure, home)).items():
            print_lines(f"counterpoint: --shims {value} may help: {shim.name}, {shim.why}", file=sys.stderr)
        number = getattr(failure, "code", None)  # of SystemExit, which prints nothing else if it is a number
        how = f"exit code {number}" if isinstance(number, int) else "an error:"
        print_lines(f"counterpoint: the script ended with {how}", file=sys.stderr)
        raise failure
    return code


def _other_framework(script: Path) -> str | None:
    """The framework that a script imports instead of torch."""
    try:
        nodes = [*ast.walk(ast.parse(script.read_text(encoding="utf-8")))]
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None  # the script's own run says what is wrong
    names = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {(node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    return None if "torch" in names else next((name for name in FRAMEWORKS if name in names), None)


def conclude(
    data: Findings, objective: str | None, script: Sequence[str], folder: Path, apply: bool, only: bool = False
) -> int:
    """Say what was found, add the commands to the data, and return the exit code.

    Args:
        data, folder: what was found, and the folder of the script.
        objective: the spec of the user, if there is one.
        script: the end of each command: shims, ``--``, the script and its arguments.
        apply: run the command, if there is only one.
        only: give commands for a part of the script's loss, too.
    """
    losses = data["losses"]
    places = {folder, *(parent for loss in losses for parent in [*Path(loss["file"]).parents][:4])}
    sound = [loss for loss in losses if is_sound(loss)]
    seen = [row["site"].rpartition(":") for row in data["survey"]] if not losses else []
    lines = [(loss["file"], loss["line"]) for loss in losses] + [(file, int(line)) for file, _, line in seen]
    rows = [product["site"].rpartition(":") for loss in losses for product in loss["products"]]
    lines += [(str(Path(file).resolve()), int(line)) for file, _, line in rows]
    data["hosts"] = _known_hosts(places, lines)
    known = [["counterpoint", "inject", name, *objective_of(objective, sound[0])] for name in data["hosts"] if sound]
    unseen = [name for name in data["hosts"] if not losses and registry.load(name).scale]
    known = known if only or all(loss["form"] for loss in losses) else []  # a host's function may compute the others
    known += [["counterpoint", "inject", name, "--objective", objective or "infonce:t=host"] for name in unseen]
    ready = commands_of(losses, objective)
    covered = [id(loss) for _, group in ready for loss in group]
    data["open"] = [loss["site"] for loss in losses if id(loss) not in covered and not loss.get("pairs")]
    data["open"] += [loss["site"] for _, group in ready[1:] for loss in group]  # by another command, not at once
    for loss in losses:
        loss["command"] = id(loss) in covered
    every = dict[str, Any]()
    for group in [group for _, group in ready] or [[loss] for loss in losses if loss["form"]]:
        every |= {k: v for k, v in group[0]["told"].items() if all(k in loss["told"] for loss in group)}
    data["told"] = [{"path": path, **about} for path, about in every.items()]
    ready = ready if only or not data["open"] else []
    part = ["--only"] if data["open"] else []
    data["commands"] = commands = [[*words, *part, *script] for words in (*known, *(words for words, _ in ready))]
    replaced = sound[:1] if known else ready[0][1] if ready else []
    owns = [spec_of(str(loss["form"]), loss, host_temperature(loss)) for loss in replaced]
    data["own"] = " + ".join(dict.fromkeys(owns)) or None
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    print_lines(*in_words(data), file=sys.stderr)
    if commands and "TORCHELASTIC_RUN_ID" in os.environ and LAUNCHER not in os.environ:
        print_lines("  In all processes: your launcher stands before the script, -- torchrun ...", file=sys.stderr)
    if objective and commands and not apply:
        how = "start a command above" + ", or add --apply" * (not several)
        print_lines(f"  {objective} was not trained: {how}.", file=sys.stderr)
    if apply and commands:
        if several or (len(known) != 1 and len(ready) != 1):
            why = "each of these commands replaces another loss, so none was run"
            why = "it would start one process: start the command above, with your launcher" if several else why
            print_lines(f"counterpoint: --apply: {why}", file=sys.stderr)
            return UnreachedError.code
        at = commands[0].index("--")
        script = split_launcher(commands[0][at + 1 :])[1]  # the launcher runs already
        words = [*commands[0][2:at], "--verify", "3", "--", *script]
        return subprocess.run([sys.executable, "-m", "counterpoint.plugins.inject", *words]).returncode
    return 0 if commands else UnreachedError.code


def _known_hosts(folders: Iterable[Path], lines: Sequence[tuple[str, int]]) -> list[str]:
    """The hosts whose clone, package or function a line lies in."""

    def is_known(host: Host) -> bool:
        if host.sites:
            return any(Site.parse(text).covers(*each) for text in host.sites for each in lines)
        if host.package:
            return any(folder.name == host.package for folder in folders)
        # a fork may have losses of its own in other files
        own = (folder / name for folder in folders for name, _ in host.markers if host.recognises(folder))
        return not {*own}.isdisjoint(Path(file) for file, _ in lines)

    return [host.name for host in map(registry.load, registry.names()) if is_known(host)]


HOST = Host(
    name="auto",
    title="any script: finds where its contrastive loss is computed",
    seam="what is differentiated by backward() and comes from a product of embeddings",
    tensors="what the script has; it trains with its own loss",
    spec="the script's own",
    tested="torch 2.15; November 2026",
    max_views=1,
    views="nothing is replaced",
    inputs="nothing is replaced",
    options=("steps", "json", "apply"),
    hint=f"Watches {STEPS} steps, says what it found, and ends the script.",
    before=before,
)
