"""Describe the findings: in words and as commands."""

import re
import shlex
from collections.abc import Sequence
from typing import Any

from counterpoint.objectives.infonce import HCL, first_temperature

from ..host import OWN_LOSS, depends_on_cosines
from ..sites import CHANGING, short
from .records import TRAINED, Finding, Findings, Replaced

NAMED = ("queue", "labels")  # arguments of an objective that are parameters of the script's function
CLASSES = ": probably class labels; with them, training is supervised"
OTHERS = "; the {} other keys, such as hard negatives, have no value and stay negatives"
ALL = " in this step, where it changes nothing"


def is_sound(loss: Finding) -> bool:
    return bool(loss["ours"]) and not loss["doubts"]


def commands_of(losses: Sequence[Finding], objective: str | None) -> list[tuple[list[str], list[Finding]]]:
    """Commands without the script, with the losses that each replaces: one for all if there is such a command.

    Losses at sites are in one command if they are alike but for their scales, which are then measured; functions, if
    one objective is for all but for its temperature.
    """
    sites, functions = _roads(losses, objective)
    if len(sites) + len(functions) > 1:
        alone, _ = _roads(losses, objective, functions=False)
        if len(alone) == 1 and sum(map(len, alone.values())) == sum(map(len, (*sites.values(), *functions.values()))):
            sites, functions = alone, {}
    groups = [(["logits", *_site_words(group), *_scale_words(group, objective)], group) for group in sites.values()]
    groups += [(_function_words(group, spec, objective), group) for spec, group in functions.items()]
    return [(["counterpoint", "inject", *words], group) for words, group in groups]


def _roads(
    losses: Sequence[Finding], objective: str | None, functions: bool = True
) -> tuple[dict[Any, list[Finding]], ...]:
    """Return the losses of each command that names sites, and those of each that names functions, if wanted."""
    sites: dict[Any, list[Finding]] = {}
    by_function: dict[Any, list[Finding]] = {}
    for loss in (loss for loss in losses if is_sound(loss)):
        call, labeled = loss.get("replace"), bool(loss.get("site_has_labels"))
        known = call["scale"] if call and loss["learned"] else not _changes(loss)
        labeled = labeled and not (loss.get("shifted") and (loss.get("product") or (call and call["whole"] and known)))
        by_call = bool(labeled or loss.get("columns")) and not loss.get("product") and "bias" not in loss
        at_site = bool(loss["scale_variable"]) if loss["learned"] else by_call or not _changes(loss)
        if functions and not labeled and call and call["whole"] and known:
            spec = re.sub("(?<=[:,])t=[^,]*,?", "", objective_of(objective, loss)[1]).rstrip(":,")
            by_function.setdefault(spec, []).append(loss)
        elif at_site and (labeled or loss.get("columns") or loss.get("product")) and not _is_refused(objective, loss):
            way = None if labeled else (*_way(loss), bool(loss.get("columns")))
            scales = [f"{x:.6g}" for x in (loss["scale"], *loss["product_scales"])] if loss.get("product") else None
            sites.setdefault((str(loss["form"]), str(scales), way), []).append(loss)
    plain = sites.pop(("infonce", "None", None), [])  # calls that have labels go with others that need --positives
    if plain:
        key = next((key for key in sites if key[:2] == ("infonce", "None")), ("infonce", "None", None))
        sites[key] = [*plain, *sites.get(key, [])]
    return sites, by_function


def _is_refused(objective: str | None, loss: Finding) -> bool:
    """Whether a site's logits are less a number of each row, on which the objective depends."""
    shifted = objective not in (None, OWN_LOSS) and loss.get("shifted") and not loss.get("product")
    return bool(shifted) and depends_on_cosines(str(objective))


def _function_words(group: Sequence[Finding], spec: str, objective: str | None) -> list[str]:
    """Return the words of a command for functions; ``spec`` is the objective, if their temperatures differ."""
    calls = {f"{call['file']}:{call['function']}": (call, loss) for loss in group[::-1] if (call := loss["replace"])}
    # a function that is called by another one was compared with it
    outermost = [each for name, each in calls.items() if not (calls.keys() - {name}) & {*each[0]["outer"]}]
    words, specs = ["function"], {objective_of(objective, loss)[1] for _, loss in outermost}
    for call, loss in reversed(outermost):
        how = [f"{k}={str(v).lower()}" for k, v in call["as"].items() if k not in NAMED]
        words += ["--replace", _function_text(call), *(["--as", ",".join(how)] if how or outermost[1:] else [])]
        words += ["--own", spec_of(str(loss["form"]), loss, host_temperature(loss))]
    return [*words, "--objective", spec if len(specs) > 1 else next(iter(specs))]


def _way(loss: Finding) -> list[str]:
    way = str(loss.get("way", "rows"))
    by_call = loss["kind"] in ("log_softmax", *["logsumexp"] * (way == "columns")) and not loss.get("product")
    return ["--way", way] if way != "rows" and not by_call else []


def _site_words(group: Sequence[Finding]) -> list[str]:
    first, product = group[-1], group[-1].get("product")
    columns = first.get("columns")
    sites = {loss["product"] if product else loss["site"]: str(loss.get("columns") or columns) for loss in group}
    words = [word for site in sites for word in ("--product" if product else "--site", site)]
    if columns:
        words += ["--positives", ",".join(sites.values() if len({*sites.values()}) > 1 else [columns]), *_way(first)]
    words += ["--weighted"] * bool(first.get("weighted"))
    if first.get("weighted") or product or (first.get("columns") and str(first["form"]) not in ("infonce", "siglip")):
        words += ["--own", spec_of(str(first["form"]), first, "host" * bool(first["learned"]))]
    return words


def _scale_words(group: Sequence[Finding], objective: str | None) -> list[str]:
    first = Finding(**group[-1])  # of shifted logits, no objective of cosines is proposed, which would be refused
    alike = (loss.get("product") or not loss.get("shifted") for loss in group)
    first["normalized"] = all(alike) and all(loss.get("normalized") for loss in group)
    if first.get("product") and not first["learned"]:
        scales = dict.fromkeys(f"{scale:.6g}" for scale in first["product_scales"])
        return [*(["--scale", ",".join(scales)] if [*scales] != ["1"] else []), *objective_of(objective, first)]
    if any(_changes(loss) and not loss["learned"] for loss in group):
        return ["--scale", CHANGING, *objective_of(objective, first, "host")]
    if len({(f"{loss['scale']:.4g}", *loss["learned"]) for loss in group}) > 1:
        return objective_of(objective, first, "host")
    if "bias" in first:  # a scale and a bias are measured together
        return objective_of(objective, first)
    return ["--scale", first["scale_variable"] or f"{first['scale']:.6g}", *objective_of(objective, first)]


def _changes(loss: Finding) -> bool:
    return bool(max(loss["scales"]) - min(loss["scales"]) > 1e-3 * abs(loss["scale"]))


def objective_of(objective: str | None, loss: Finding, t: str | None = None) -> list[str]:
    form = re.sub("^(infonce|siglip)", "hcl" if loss.get("normalized") else "infonce", str(loss["form"]))
    t = host_temperature(loss) if t is None else t
    if not t and form[:3] == "hcl" != str(loss["form"])[:3]:
        t = f"{first_temperature(HCL(), 1 / loss['scale']):.6g}"
    return ["--objective", objective or spec_of(form, loss, t)]


def host_temperature(loss: Finding) -> str:
    """``host`` where the seam knows the script's learned scale, else an empty string for a number."""
    known = loss["kind"] == "cross entropy" or loss.get("columns") or loss.get("site_has_labels")
    return "host" if (loss["learned"] or _changes(loss)) and (known or (loss.get("replace") or {}).get("scale")) else ""


def spec_of(form: str, loss: Finding, t: str = "") -> str:
    name, _, rest = form.partition(":")
    if name == "siglip":
        rest = "b=host" if t and (loss["bias_learned"] or loss.get("columns")) else f"b={loss['bias']:.6g}"
    return f"{name}:t={t or format(1 / loss['scale'], '.6g')}{',' * bool(rest)}{rest}"


def _function_text(replace: Replaced) -> str:
    named = {**{key: replace["as"].get(key) for key in NAMED}, "scale": replace["scale"], "bias": replace.get("bias")}
    words = [name for name in replace["arguments"] if name != named["queue"]]
    words += [f"{key}={name}" for key, name in named.items() if name]
    return f"{short(replace['file'])}:{replace['function']}({', '.join(words)})"


def in_words(data: Findings) -> list[str]:
    losses = data["losses"]
    known = [loss for loss in losses if loss["form"]]
    steps = f"{data['backwards']} calls of backward()"
    lines = [f"counterpoint: watched {steps}: {len(known)} contrastive {'loss' if len(known) == 1 else 'losses'}"]
    if data["hosts"]:
        lines.append(f"  known host: {', '.join(data['hosts'])}")
    for loss in losses:
        lines += ["", *_loss_words(loss)]
    about = '"host; {kind}={path}", {length} values, {distinct} distinct'
    apart = [one["logits"] for one in known if one.get("positives") == "the diagonal" and one["processes"] == 1]
    equal = any(one.get("repeats") for one in known)
    told = [("treatment", '"host; duplicates", since some embeddings are equal')] * equal
    for x in data["told"]:
        notes = CLASSES * x["classes"] + ALL * (x["distinct"] == x["length"])
        keys = next((n[-1] for n in apart if n[1:] and n[-2] <= x["length"] < n[-1]), 0)
        told.append(("treatment", about.format_map(x) + notes + OTHERS.format(keys - x["length"]) * (keys > 0)))
    lines += ["", *_table(told)] if told else []
    lines += [f"  not judged, because of an error of this command: {error}" for error in dict.fromkeys(data["errors"])]
    if not known:
        lines += _nothing_words(data)
    for command in data["commands"]:
        lines += ["", "  run         " + shlex.join(command)]
        if command[command.index("--objective") + 1] == data.get("own"):
            lines.append(f"  {data['own']} is the script's own loss: name another one there, or a treatment.")
    if any(f"--objective hcl:t={2 / one['scale']:.6g}" in "\n".join(lines) for one in known if one.get("scale")):
        lines.append("  Its t is twice yours, since HCL sharpens: it begins at (1 + beta) times the temperature.")
    if data["open"] and not data["commands"] and any(loss["command"] for loss in losses):
        where = ", ".join(data["open"][:3]) + f" and {len(data['open']) - 3} more" * (len(data["open"]) > 3)
        lines += ["", f"  No command: it would leave the loss of the same step at {where} as it is; --only prints it."]
    if len(data["commands"]) > 1:
        lines.append(f"  Each replaces {'a loss, or it is another road' if known[1:] else 'the loss: take the first'}.")
    if script := " -- ".join(map(shlex.join, data["commands"][:1])).partition(" -- ")[2]:
        race = f"counterpoint race auto --metric METRIC --steps-flag FLAG --seed-flag FLAG -- {script}"
        lines.append(f"  Does it help? {race} (METRIC, FLAG: counterpoint race --help)")
    return lines


def _loss_words(loss: Finding) -> list[str]:
    if not loss["form"]:
        text = f"{loss['kind']} of a product at {loss['site']} in {loss['function']}: {loss['call']}"
        why = "its gradient is not that of InfoNCE, SupCon, NCA, HCL, DCL or SigLIP; soft targets need a name there"
        return _table([("not known", text), ("why", why)])
    times = loss["calls"] / max(loss["steps"], 1)
    calls = f"{times:g} call{'s' * (times != 1)} a step"
    rows: list[tuple[str, str]] = [(loss["kind"], f"{loss['site']} in {loss['function']}: {loss['call']}, {calls}")]
    shape = " x ".join(str(n) for n in loss["logits"])
    for product in loss["products"]:
        rows.append(("product", f"{product['site']}: {product['call']}, of {product['a']} and {product['b']}"))
    if loss["form"] == "binary":
        rows.append(("form", f"binary logits {shape}, each pair by itself, but not SigLIP's sum over all pairs"))
        return _table(rows)
    rows.append(("logits", f"{shape}, {_similarities(loss)}"))
    if loss["scale"] > 0 and not loss.get("scores"):
        rows.append(("scale", f"{loss['scale']:.6g} (temperature {1 / loss['scale']:.4g}), {_origin(loss)}"))
    if "bias" in loss:
        learned = f"learned: {', '.join(loss['bias_learned'])}" if loss["bias_learned"] else "constant"
        rows.append(("bias", f"{loss['bias']:.6g}, {learned}"))
    where = "" if "bias" in loss else ", in the denominator"
    where = where if loss.get("in_denominator", True) else ", not in the denominator"
    rows += [("positives", f"{loss.get('positives')}{where}"), ("form", _form_words(loss))]
    if loss.get("other_direction"):
        at = "the same line" if loss["other_direction"] == loss["site"] else loss["other_direction"]
        rows.append(("directions", f"both: the transposed logits are at {at}"))
    elif loss.get("way") == "both":
        rows.append(("directions", "rows and columns of the same logits"))
    if loss.get("beside"):
        rows.append(("beside", "another term takes the same products of embeddings, a margin perhaps: it would stay"))
    if loss["processes"] > 1:
        rows.append(("processes", f"{loss['processes']}, logits of one process {shape}"))
    apart = [f"{k.partition('_')[0]} {loss[k]:.1g}" for k in ("value_difference", "gradient_difference") if k in loss]
    if apart and (loss["ours"] or str(loss["form"]).startswith("infonce")):
        verdict = "equals" if loss["ours"] else "is not"
        spec = spec_of(str(loss["form"]), loss)
        rows.append(("compared", f"{spec} {verdict} it, relative differences: {', '.join(apart)}"))
    rows += [("doubt", doubt) for doubt in loss["doubts"]]
    if loss["ours"] and not loss.get("command"):
        rows.append(("by hand", _by_hand(loss)))
    return _table(rows)


def _similarities(loss: Finding) -> str:
    if loss.get("scores"):
        return "scores that are not similarities times one number, so not cosines"
    if loss.get("distance"):
        return f"negative {loss['distance']} of embeddings"
    if loss.get("one_sided"):
        return "inner products of normalized and of other embeddings"
    less = f", plus {loss['offset']:.6g}" if loss.get("offset") else ", less a number of each row"
    less *= bool(loss.get("offset") or loss.get("shifted"))
    return ("cosines" if loss.get("normalized") else "inner products of embeddings that are not normalized") + less


def _origin(loss: Finding) -> str:
    if loss["learned"]:
        return f"learned: {', '.join(loss['learned'])}"
    if _changes(loss):
        return f"changes from {min(loss['scales']):g} to {max(loss['scales']):g}, and no parameter does it"
    return "constant"


TITLES = {
    "infonce": "InfoNCE",
    "supcon": "SupCon: every positive's denominator holds the other positives too",
    "nca": "NCA: the positives are summed inside the logarithm",
    "siglip": "SigLIP: binary logits, each pair by itself",
    "hcl": "HCL: hard negatives weigh more",
    "dcl": "DCL: negatives are corrected for false ones",
    "adnce": "ADNCE: negatives weigh by a Gaussian of their similarity",
}


def _form_words(loss: Finding) -> str:
    form = str(loss["form"])
    name, _, settings = form.partition(":")
    extra = ["the mean is inside the logarithm"] * ("average=inside" in form)
    extra += [settings] * (name in ("hcl", "dcl", "adnce"))
    if loss.get("reduction", "mean") != "mean":
        extra.append(f"reduction {loss['reduction']}")
    if loss.get("self_similarity") and round(loss["masked"] * loss["logits"][-1], 6) == 1:
        extra.append("each sample's own entry is left out (NT-Xent)")
    elif loss.get("masked"):
        extra.append(f"{100 * loss['masked']:.2g}% of the entries are left out")
    extra += ["anchors have weights of their own, which they keep"] * bool(loss.get("weighted"))
    if loss.get("ignored"):
        extra.append(f"{loss['ignored']} rows are ignored")
    if loss.get("self_similarity"):
        extra.append("all samples of a batch with each other")
    return ", ".join([TITLES.get(name, form), *extra])


def _by_hand(loss: Finding) -> str:
    """What to write, where there is no command."""
    if loss["doubts"] and loss.get("site_has_labels"):
        scale = "NAME, the name that it has there" if loss["learned"] else f"{loss['scale']:.6g}"
        return f"with these logits as they are: counterpoint inject logits --site {loss['site']} --scale {scale}"
    if TRAINED in loss["doubts"]:
        return "detach() the soft targets, and call auto again"
    if loss["doubts"]:
        return "if cross entropy is what you mean, write it as F.cross_entropy of the logits, and call auto again"
    how = "write it as F.cross_entropy of logits, then --site replaces it"
    if (not loss["learned"] and not _changes(loss)) or loss.get("shifted"):
        into = "put the loss alone into a function of its embeddings, loss(a, b), in no other one, and call auto again"
        return how if loss.get("distance") else into
    if loss.get("site_has_labels") or loss.get("columns"):
        how = f"`counterpoint inject logits --site {loss['site']} --scale NAME`, with the name that it has there"
    return f"its scale {'is learned' if loss['learned'] else 'changes'}: {how}"


def _nothing_words(data: Findings) -> list[str]:
    if data["commands"]:
        return ["", "  No product of embeddings leads to its logits, but the lines are those of a known host."]
    lines = ["", "  No contrastive loss of a known form was reached."]
    if not data["backwards"] and not data.get("failed"):
        lines.append("  The script ended before it called backward(): give it arguments with which it trains.")
    elif data["ended_early"] and not data.get("failed"):
        lines.append(f"  The script ended by itself after {data['backwards']} calls of backward().")
    seen = [f"    {row['site']}: {row['call']}, {row['times']} times" for row in data["survey"]]
    lines += ["  Seen instead:", *seen] * bool(seen)
    scored = [f"--site {x['site']} " for x in data["survey"] if re.match("cross entropy .* one by one", x["call"])]
    if scored:
        lines.append("  If those of a row are a cross encoder's, of candidates, this replaces the loss:")
        lines.append(f"    counterpoint inject logits {''.join(scored)}--scale 1 --objective infonce:t=1 -- ...")
    if data["backwards"] and not data["losses"]:
        words = "--replace 'FILE:FUNCTION(a, b)' --as pairing=one_way --own infonce:t=T --objective hcl:t=T -- ..."
        text = "  If a function of embeddings computes one, name it and its form; a wrong form is refused:"
        lines += [text, f"    counterpoint inject function {words}"]
    return lines


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    return [f"  {name:13} {text}" for name, text in rows]
