"""``counterpoint completion``: a shell script that completes commands, flags, choices, files and objectives.

shtab writes the script from the parsers; only specs such as ``arcl(adnce:t=0.2,mu=...)`` need code of our own. The
script holds the names of all objectives and parameters, so that completion starts no Python. Print it again after an
update.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import counterpoint as cp
from counterpoint.install import install

INSTALL = {
    "bash": "counterpoint completion bash > ~/.local/share/bash-completion/completions/counterpoint",
    "zsh": "counterpoint completion zsh > ~/.zfunc/_counterpoint; then in ~/.zshrc, before compinit: fpath+=(~/.zfunc)",
    "fish": "counterpoint completion fish > ~/.config/fish/completions/counterpoint.fish",
    "tcsh": "counterpoint completion tcsh > ~/.counterpoint.tcsh; then in ~/.tcshrc: source ~/.counterpoint.tcsh",
}
FILES = ("FILE", "FOLDER", "RUNS", "DATA")  # metavars of files and folders

# for any POSIX shell: print every spec that the spec $1, up to its last word, can become
SPECS = r"""_counterpoint_specs() {
  part="${1##*[ +(*]}"
  case "$part" in
    *\)*) name="${1%(*}"; name="${name##*[ +(*]}";;
    *) name="${part%%:*}";;
  esac
  case "$part" in
    *:*) key="${part##*[:,]}";;
    *) for word in $(_counterpoint_table names); do echo "${1%"$part"}$word"; done; return;;
  esac
  head="${1%"$key"}"
  case "$key" in *=*) head="$head${key%%=*}="; key="${key%%=*}";; *) key="";; esac
  for word in $(_counterpoint_table "$name${key:+ $key}"); do echo "$head$word"; done
}
"""
# bash splits words at : and =, which are part of a spec, and only the outermost function can suppress the space
BASH = r"""_counterpoint_complete_spec() {
  local line="${COMP_LINE:0:COMP_POINT}" quotes quote spec
  spec="${line##*[[:space:]]}"
  for quote in '"' "'"; do  # an open quotation is one word
    quotes="${line//[^$quote]/}"
    (( ${#quotes} % 2 )) && spec="${line##*"$quote"}"
  done
  case "$1" in :|=) set -- "";; esac
  local word="${1#[\"\']}"
  _counterpoint_specs "$spec" | while read -r found; do
    [[ "$found" == "$spec"* ]] && echo "${found:${#spec}-${#word}}"
  done
}
"""
BASH_END = r"""
_counterpoint() {
  _shtab_counterpoint "$@"
  case "${COMPREPLY[*]}" in *[:=\(]) compopt -o nospace 2> /dev/null;; esac
}
complete -o bashdefault -F _counterpoint counterpoint
"""
ZSH = r"""_counterpoint_complete_spec() {
  local -a found=(${(f)"$(emulate sh; _counterpoint_specs "$PREFIX")"})
  compadd -S '' -- $found
}
"""
FISH = r"""function _counterpoint_complete_spec
  sh -c $_counterpoint_sh'_counterpoint_specs "$1"' sh (commandline -ct | string trim -l -c '"\'')
end
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=INSTALL, help="the shell; the script's first line says where to put it")


def command(options: argparse.Namespace) -> int:
    from .main import build

    print(script(options.shell, build("*")))
    return 0


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the completion script of a parser for one shell."""
    try:
        import shtab
    except ImportError as error:
        raise ImportError(f"completion needs shtab: {install('cli')}") from error

    words = spec_words()
    cases = "\n".join(f"    {shlex.quote(key)}) echo {shlex.quote(' '.join(words[key]))};;" for key in words)
    functions = f'_counterpoint_table() {{\n  case "$1" in\n{cases}\n  esac\n}}\n{SPECS}'
    quoted = functions.replace("\\", "\\\\").replace("'", "\\'")
    preambles = {
        "bash": functions + BASH,
        "zsh": functions + ZSH,
        "fish": f"set -g _counterpoint_sh '{quoted}'\n{FISH}",
    }
    specs = dict.fromkeys(("bash", "zsh"), "_counterpoint_complete_spec")
    specs |= {"fish": "(_counterpoint_complete_spec)"}
    specs |= {"tcsh": f"({' '.join(word.rstrip(':(') for word in words['names'])})"}
    _mark(parser, specs, shtab.FILE)
    text = shtab.complete(parser, shell, preamble=preambles.get(shell, ""))
    before, after = "#compdef counterpoint\n" * (shell == "zsh"), BASH_END * (shell == "bash")
    return f"{before}# {INSTALL[shell]}\n{text}{after}"


def spec_words() -> dict[str, list[str]]:
    """What can follow in a spec: ``names``; for each NAME its parameters; for each ``NAME KEY`` its words, if any."""
    words: dict[str, list[str]] = {"names": []}
    for name, class_ in cp.registry.items():
        words["names"].append(name + ("(" if issubclass(class_, cp.Wrapper) else ":" if class_.hyper else ""))
        for hyper in class_.hyper.values():
            words.setdefault(name, []).append(f"{hyper.short}=")
            if options := list(hyper.options if isinstance(hyper, cp.Choice) else getattr(hyper, "words", ())):
                words[f"{name} {hyper.short}"] = options
            elif isinstance(hyper, cp.Flag):
                words[f"{name} {hyper.short}"] = ["true", "false"]
    return words


def _mark(parser: argparse.ArgumentParser, specs: dict[str, str], files: Any) -> None:
    """Tell shtab which arguments of a parser, and of its commands, are specs or files."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _mark(subparser, specs, files)
        elif action.choices is not None:
            action.choices = list(action.choices)  # shtab takes a dict for a table of commands
        elif action.dest in ("objective", "spec", "baseline") or action.metavar == "SPEC":
            action.complete = specs  # type: ignore[attr-defined]
        elif action.nargs != 0 and (action.type is Path or action.metavar in FILES):
            action.complete = files  # type: ignore[attr-defined]
