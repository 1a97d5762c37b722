"""Say what was found: in words, as commands, and as the line to write by hand."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .functions import Finding

NAMED = ("queue", "labels")  # arguments of an objective that are parameters of the script's function
SETTINGS = ("reduction", "ignore_index")  # of cross entropy, which ContrastiveLoss has too


def is_sound(loss: Finding) -> bool:
    return bool(loss["ours"]) and not loss["doubts"]


def commands_of(losses: Sequence[Finding], objective: str | None, script: Sequence[str]) -> list[list[str]]:
    """Ready commands, which end with ``script``: for the losses at sites, and one per function for others."""
    sites: list[Finding] = []
    functions: dict[str, Finding] = {}
    for loss in losses:
        if not is_sound(loss):
            continue
        call = loss.get("replace")
        known = call["scale"] if call and loss["learned"] else not _changes(loss)
        if not loss.get("site_has_labels") and call and call["whole"] and known:
            functions[_function_text(loss["replace"])] = loss
        elif (loss.get("columns") or loss.get("site_has_labels")) and _scale_is_known(loss):
            sites.append(loss)
    commands = [["counterpoint", "inject", "logits", *words, *script] for words in _site_words(sites, objective)]
    commands += [[*_function_words(loss, objective), *script] for loss in functions.values()]
    return commands


def _function_words(loss: Finding, objective: str | None) -> list[str]:
    how = {k: v for k, v in loss["replace"]["as"].items() if k not in (*NAMED, "stacked", "reduction", "times")}
    options = ",".join(f"{k}={str(v).lower()}" for k, v in how.items())
    words = ["--replace", _function_text(loss["replace"]), *(["--as", options] if options else [])]
    words += ["--own", _spec(str(loss["form"]), loss, _host_temperature(loss)), *objective_of(objective, loss)]
    return ["counterpoint", "inject", "function", *words]


def _scale_is_known(loss: Finding) -> bool:
    """Whether a site can be given the scale; where it cannot, words say why."""
    return bool(loss["scale_variable"]) if loss["learned"] else not _changes(loss)


def _site_words(losses: Sequence[Finding], objective: str | None) -> list[list[str]]:
    """The options of a command for each group of sites with one scale.

    Where they differ in one function, whose losses belong together, the first command is for all of them, and measures
    the scale of each.
    """
    groups: dict[Any, list[Finding]] = {}
    functions: dict[Any, list[Finding]] = {}
    for loss in losses:
        key = loss.get("columns"), str(loss["form"]), str(loss.get("way")), bool(loss.get("product"))
        groups.setdefault((round(loss["scale"], 4), tuple(loss["learned"]), key), []).append(loss)
        functions.setdefault((loss["file"], loss["function"], key), []).append(loss)
    one_by_one = [_options(group, objective, measured=False) for group in groups.values()]
    together = [group for group in functions.values() if len(group) > 1 and group not in groups.values()]
    if len(together) != 1 or len(together[0]) != len(losses):
        return one_by_one
    return [_options(together[0], objective, measured=True), *([*words, "--only"] for words in one_by_one)]


def _options(group: Sequence[Finding], objective: str | None, measured: bool) -> list[str]:
    first, product = group[0], group[0].get("product")
    sites = dict.fromkeys(loss["product"] if product else loss["site"] for loss in group)
    words = [word for site in sites for word in ("--product" if product else "--site", site)]
    words += ["--positives", first["columns"]] if first.get("columns") else []
    way = first.get("way", "rows")
    by_call = not product and (first["kind"] == "log_softmax" or (first["kind"] == "logsumexp" and way == "columns"))
    words += ["--way", way] if first.get("columns") and way != "rows" and not by_call else []
    if product or (first.get("columns") and str(first["form"]) not in ("infonce", "siglip")):
        words += ["--own", _spec(str(first["form"]), first, "" if product or not first["learned"] else "host")]
    if product:
        scale = first["product_scale"]
        words += [] if abs(scale - 1) < 1e-4 else ["--scale", f"{scale:.6g}"]
        return [*words, *objective_of(objective, first)]
    if measured:
        return [*words, *(["--objective", objective] if objective else _objective(group[0], "host"))]
    if "bias" not in group[0]:  # a scale and a bias are measured together
        learned = group[0]["learned"]
        words += ["--scale", group[0]["scale_variable"] if learned else f"{group[0]['scale']:.6g}"]
    return [*words, *objective_of(objective, group[0])]


def _changes(loss: Finding) -> bool:
    return bool(max(loss["scales"]) - min(loss["scales"]) > 1e-3 * abs(loss["scale"]))


def objective_of(objective: str | None, loss: Finding) -> list[str]:
    return ["--objective", objective] if objective else _objective(loss, _host_temperature(loss))


def _objective(loss: Finding, t: str) -> list[str]:
    form = str(loss["form"])
    changed = form.replace("infonce", "adnce") if loss.get("normalized") else form
    return ["--objective", _spec("adnce" if form.startswith("siglip") else changed, loss, t)]


def _host_temperature(loss: Finding) -> str:
    """``host`` where the seam knows the script's learned scale, else an empty string for a number."""
    known = loss["kind"] == "cross entropy" or loss.get("columns") or loss.get("site_has_labels")
    return "host" if loss["learned"] and (known or (loss.get("replace") or {}).get("scale")) else ""


def _spec(form: str, loss: Finding, t: str = "") -> str:
    name, _, rest = form.partition(":")
    if name == "siglip":
        rest = "b=host" if t and (loss["bias_learned"] or loss.get("columns")) else f"b={loss['bias']:.6g}"
    return f"{name}:t={t or format(1 / loss['scale'], '.6g')}{',' * bool(rest)}{rest}"


def _function_text(replace: Finding) -> str:
    named = {**{key: replace["as"].get(key) for key in NAMED}, "scale": replace["scale"], "bias": replace.get("bias")}
    words = [name for name in replace["arguments"] if name != named["queue"]]
    words += [f"{key}={name}" for key, name in named.items() if name]
    return f"{_short(replace['file'])}:{replace['function']}({', '.join(words)})"


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def in_words(data: Finding, objective: str | None) -> list[str]:
    losses = data["losses"]
    known = [loss for loss in losses if loss["form"]]
    steps = f"{data['backwards']} calls of backward()"
    lines = [f"counterpoint: watched {steps}: {len(known)} contrastive {'loss' if len(known) == 1 else 'losses'}"]
    if data["hosts"]:
        lines.append(f"  known host: {', '.join(data['hosts'])}")
    for loss in losses:
        lines += ["", *(_loss_words(loss, objective) if loss["form"] else _unknown_words(loss))]
    lines += [f"  not judged, because of an error of this command: {error}" for error in dict.fromkeys(data["errors"])]
    if not known:
        lines += _nothing_words(data)
    for command in data["commands"]:
        lines += ["", "  run         " + shlex.join(command)]
    if data["open"] and not data["commands"] and any(map(is_sound, losses)):
        more = f" and {len(data['open']) - 3} more" * (len(data["open"]) > 3)
        where = ", ".join(data["open"][:3]) + more
        lines += ["", f"  No command: it would leave the loss of the same step at {where} as it is; --only prints it."]
    if len(data["commands"]) > 1:
        lines.append("  Each of these commands replaces one loss, or is another road to it.")
    return lines


def _loss_words(loss: Finding, objective: str | None) -> list[str]:
    times = loss["calls"] / max(loss["steps"], 1)
    calls = f"{times:g} call{'s' * (times != 1)} a step"
    rows: list[tuple[str, str]] = [(loss["kind"], f"{loss['site']} in {loss['function']}: {loss['call']}, {calls}")]
    shape = " x ".join(str(n) for n in loss["logits"])
    for product in loss["products"]:
        rows.append(("product", f"{product['site']}: {product['call']}, of {product['a']} and {product['b']}"))
    if loss["form"] == "binary":
        rows.append(("form", f"binary logits {shape}, each pair by itself, but not SigLIP's sum over all pairs"))
        return _table(rows)
    similar = "cosines" if loss.get("normalized") else "inner products of embeddings that are not normalized"
    similar = "inner products of normalized and of other embeddings" if loss.get("one_sided") else similar
    rows.append(("logits", f"{shape}, {similar}"))
    origin = f"learned: {', '.join(loss['learned'])}" if loss["learned"] else "constant"
    if not loss["learned"] and _changes(loss):
        origin = f"changes from {min(loss['scales']):g} to {max(loss['scales']):g}, and no parameter does it"
    if loss["scale"] > 0:
        rows.append(("scale", f"{loss['scale']:.6g} (temperature {1 / loss['scale']:.4g}), {origin}"))
    if "bias" in loss:
        learned = f"learned: {', '.join(loss['bias_learned'])}" if loss["bias_learned"] else "constant"
        rows.append(("bias", f"{loss['bias']:.6g}, {learned}"))
        rows.append(("positives", str(loss.get("positives"))))
    else:
        where = "in the denominator" if loss.get("in_denominator", True) else "not in the denominator"
        rows.append(("positives", f"{loss.get('positives')}, {where}"))
    rows.append(("form", _form_words(loss)))
    if loss.get("other_direction"):
        here = loss["other_direction"] == loss["site"]
        rows.append(
            (
                "directions",
                "both: "
                + (
                    "the transposed logits are at the same line"
                    if here
                    else f"the transposed logits are at {loss['other_direction']}"
                ),
            )
        )
    elif loss.get("way") == "both":
        rows.append(("directions", "rows and columns of the same logits"))
    if loss["processes"] > 1:
        rows.append(("processes", f"{loss['processes']}, logits of one process {shape}"))
    compared = [
        f"{k.partition('_')[0]} {loss[k]:.1g}" for k in ("value_difference", "gradient_difference") if k in loss
    ]
    verdict = "is not" if not loss["ours"] else "is" if loss.get("epsilon") else "equals"
    if compared and (loss["ours"] or str(loss["form"]).startswith("infonce")):
        spec = _spec(str(loss["form"]), loss)
        but = f" but for {loss['epsilon']:.1g} inside its logarithm" if loss.get("epsilon") else ""
        rows.append(("compared", f"{spec} {verdict} it{but}, relative differences: {', '.join(compared)}"))
    replace = loss.get("replace")
    if replace and "times" in replace["as"]:
        rows.append(
            ("weight", f"{replace['function']} returns {replace['as']['times']:.4g} times the mean over anchors")
        )
    if loss.get("other_terms"):
        rows.append(("also", "the script's loss has another term of these similarities; it stays as it is"))
    rows += [("doubt", doubt) for doubt in loss["doubts"]]
    if loss["ours"]:
        rows += _by_hand(loss, objective)
    return _table(rows)


TITLES = {
    "infonce": "InfoNCE",
    "supcon": "SupCon: every positive's denominator holds the other positives too",
    "nca": "NCA: the positives are summed inside the logarithm",
    "siglip": "SigLIP: binary logits, each pair by itself",
}


def _form_words(loss: Finding) -> str:
    form = str(loss["form"])
    if form.partition(":")[0] in TITLES:
        extra = ["the mean is inside the logarithm"] * ("average=inside" in form)
        if loss.get("reduction", "mean") != "mean":
            extra.append(f"reduction {loss['reduction']}")
        if loss.get("masked"):
            extra.append(f"{loss['masked']:.0%} of the entries are left out")
        if loss.get("ignored"):
            extra.append(f"{loss['ignored']} rows are ignored")
        if loss.get("self_similarity"):
            extra.append("all samples of a batch with each other")
        return ", ".join([TITLES[form.partition(":")[0]], *extra])
    return f"{form}: has no counterpart"


def _by_hand(loss: Finding, objective: str | None) -> list[tuple[str, str]]:
    """The line to write by hand, with the script's own names."""
    changes = not loss["learned"] and _changes(loss)
    spec = objective or _objective(loss, "host" if changes else _host_temperature(loss))[1]
    replace = loss.get("replace")
    called = loss["kind"] == "cross entropy"  # and then its call is what to change, if the function returns more
    if replace is not None and (replace["exact"] or not called) and not loss["learned"] and not changes:
        chosen, options = replace["arguments"], dict(replace["as"])
        sums = ", times the number of anchors" * (options.pop("reduction", None) == "sum")
        sums += f", times {options.pop('times'):.8g}" if "times" in options else ""
        if options.pop("cat", None):
            chosen = [f"*{chosen[0]}.chunk(2)"]
        elif options.pop("split", None):
            chosen = [f"{chosen[0]}[0::2]", f"{chosen[0]}[1::2]"]
        if options.pop("keys", None):
            a, b = chosen
            groups = f"{b}.view(len({a}), -1, {b}.shape[-1])"
            chosen = [a, f"{groups}[:, 0]", f"negatives={groups}[:, 1:]"]
        if "queue" in options:
            chosen = [*chosen[:2], f"queue={options.pop('queue')}{'.T' if options.pop('transposed', False) else ''}"]
        labels = [f"labels={options.pop('labels')}"] if "labels" in options else []
        if options.pop("anchors", None):
            options["reduction"] = "none"
            sums += f", of which the first len({replace['arguments'][0]}) count"
        words = [*chosen, *labels, *(f"{k}={v!r}" for k, v in options.items())]
        line = f"in {replace['function']}: counterpoint.objective({spec!r})({', '.join(words)}){sums}"
        if loss.get("epsilon") and replace["whole"]:
            why = f"; no --verify, which would find that it adds {loss['epsilon']:.1g} inside its logarithm"
            return [("by hand", line), ("or run", shlex.join(_function_words(loss, objective)) + why)]
        return [("by hand", line)]
    if called:
        try:
            call = ast.parse(loss["call"], mode="eval").body
        except SyntaxError:
            return []
        if isinstance(call, ast.Call):
            words = [
                *map(ast.unparse, call.args[:2]),
                *(ast.unparse(k.value) for k in call.keywords if k.arg == "target"),
            ]
            settings = [repr(spec), *(f"{k}={v!r}" for k, v in loss["options"].items() if k in SETTINGS)]
            if loss["learned"]:
                tensor = loss["scale_variable"] or f"the tensor that {' and '.join(loss['learned'])} gives"
                words.append(f"scale={tensor}" + "()" * tensor.endswith((".exp", ".reciprocal")))
            elif changes:
                words.append("scale=what this call multiplies similarities by")
            else:
                settings.insert(1, f"scale={loss['scale']:.6g}")
            criterion = f"counterpoint.plugins.logits.ContrastiveLoss({', '.join(settings)})"
            return [("by hand", f"{criterion}({', '.join(words)})")]
    if loss["kind"] in ("nll_loss", "log_softmax") and not loss.get("site_has_labels"):
        return [("by hand", f"write it as F.cross_entropy of the logits at {loss['site']}, then --site replaces it")]
    if "bias" in loss:
        scale, bias = (loss[f"{key}_variable"] or f"{loss[key]:.6g}" for key in ("scale", "bias"))
        spec = "siglip:t=host,b=host"
        return [("by hand", f"counterpoint.objective({spec!r}).from_logits(LOGITS, scale={scale}, bias={bias})")]
    if loss["learned"] or changes:
        what = "is learned" if loss["learned"] else "changes"
        return [("by hand", f"its scale {what}: write it as cross entropy of logits, then --site replaces it")]
    pairs = loss.get("pairs", [])
    calls = loss.get("similarities") or list(dict.fromkeys(product["call"] for product in loss["products"]))
    if len(pairs) == 1 == len(calls) and loss["positives"] == "column 0":
        return [("by hand", f"counterpoint.objective({spec!r}).from_scores({pairs[0]}, {calls[0]})")]
    calls = [*(f"({call}).reshape(-1, 1)" for call in pairs), *calls]
    similarities = calls[0] if len(calls) == 1 else f"torch.cat([{', '.join(calls)}], 1)"
    text = f"counterpoint.objective({spec!r}).from_logits({similarities}, positives), with booleans, True at "
    return [("by hand", f"{text}{loss['positives']}, and minus infinity for what is left out")]


def _unknown_words(loss: Finding) -> list[str]:
    text = f"{loss['kind']} of a product at {loss['site']} in {loss['function']}: {loss['call']}"
    return _table(
        [
            ("not known", text),
            ("why", "its gradient is not that of InfoNCE, with or without the positive in the denominator"),
            (
                "by hand",
                "if it is contrastive: counterpoint inject function --replace "
                f"'{_short(loss['file'])}:{loss['function']}(a, b)', with the names of its embeddings",
            ),
        ]
    )


def _nothing_words(data: Finding) -> list[str]:
    lines = ["", "  No contrastive loss of a known form was reached."]
    if not data["backwards"] and not data.get("failed"):
        lines.append("  The script ended before it called backward(): give it arguments with which it trains.")
    elif data["ended_early"] and not data.get("failed"):
        lines.append(f"  The script ended by itself after {data['backwards']} calls of backward().")
    if data["survey"]:
        lines.append("  Seen instead:")
        lines += [f"    {row['site']}: {row['call']}, {row['times']} times" for row in data["survey"]]
    exponentials = [
        row["site"]
        for row in data["survey"]
        if row["call"].startswith("exponentials") and "parameters" not in row["call"]
    ]
    if exponentials:
        lines.append(
            f"  The exponentials at {', '.join(exponentials)} may belong to the loss: name its function with "
            "`counterpoint inject function --replace FILE:FUNCTION(a, b)`."
        )
    return lines


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    return [f"  {name:13} {text}" for name, text in rows]
