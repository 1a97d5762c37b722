"""``counterpoint completion``: a script for bash, zsh or fish that completes commands, flags, their choices and specs.

All is written into the script when it is made, as importing torch at each press of the tab key would take seconds.
Commands whose extra is missing are completed by name alone; make the script again after installing more.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import counterpoint as cp
from counterpoint.hyper import Choice, Flag

SPEC, FILE = "@spec", "@file"
FILES = ("FILE", "FOLDER", "RUNS", "DATA")

# for any POSIX shell; the words before the last one decide what the last one may become
COMMON = r"""
_counterpoint_reply() {
  local last="$1" command="" flag="" word
  shift
  for word in "$@"; do
    case "$word" in
      -*) flag="$word";;
      *) [ -n "$flag" ] || case " $(_counterpoint_table "next$command") " in
           *" $word "*) command="$command $word";;
         esac;;
    esac
  done
  case "$last" in -*) _counterpoint_table "flags$command"; return;; esac
  local reply="$(_counterpoint_table "values$command${flag:+ $flag}")"
  case "$reply" in
    @spec) _counterpoint_spec "$last";;
    "") _counterpoint_table "next$command";;
    *) echo "$reply";;
  esac
}
_counterpoint_spec() {
  local last="$1" part name key head
  part="${last##*[ +(*]}"
  case "$part" in
    *\)*) name="${last%(*}"; name="${name##*[ +(*]}";;
    *) name="${part%%:*}";;
  esac
  case "$part" in
    *:*) key="${part##*[:,]}";;
    *) for word in $(_counterpoint_table names); do echo "${last%"$part"}$word"; done; return;;
  esac
  head="${last%"$key"}"
  case "$key" in *=*) head="$head${key%%=*}="; key="${key%%=*}";; *) key="";; esac
  for word in $(_counterpoint_table "spec $name${key:+ $key}"); do echo "$head$word"; done
}
"""

BASH = r"""
_counterpoint() {
  local line="${COMP_LINE:0:COMP_POINT}" quotes reply word
  local cur="${line##*[[:space:]]}"
  for word in '"' "'"; do  # what stands in an open quotation is one word
    quotes="${line//[^$word]/}"
    (( ${#quotes} % 2 )) && cur="${line##*"$word"}"
  done
  local -a before
  read -r -a before <<< "${line:0:${#line}-${#cur}}"
  reply="$(_counterpoint_reply "$cur" "${before[@]:1}")"
  if [ "$reply" = @file ]; then
    compopt -o filenames 2> /dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    return
  fi
  case "$reply" in *[:=\(]*) compopt -o nospace 2> /dev/null;; esac
  mapfile -t COMPREPLY < <(compgen -W "${reply//$'\n'/ }" -- "$cur")
  word="${COMP_WORDS[COMP_CWORD]#[\"\']}"  # bash breaks words at : and =
  case "$word" in :|=) word="";; esac
  local -i cut=$(( ${#cur} - ${#word} ))
  (( cut > 0 )) && COMPREPLY=("${COMPREPLY[@]#"${cur:0:cut}"}")
}
complete -F _counterpoint counterpoint
"""

ZSH = r"""
_counterpoint() {
  local reply="$(sh -c "$_counterpoint_sh"'_counterpoint_reply "$@"' sh "$PREFIX" "${(@)words[2,CURRENT-1]}")"
  local -a found
  found=(${=reply})
  if [[ "$reply" == @file ]]; then _files
  elif [[ "$reply" == *[:=\(]* ]]; then compadd -S '' -- $found
  else compadd -- $found
  fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _counterpoint counterpoint
"""

FISH = r"""
function __counterpoint
  set -l last (commandline -ct | string trim -l -c '"\'')
  set -l before (commandline -opc)
  set -l reply (sh -c "$__counterpoint_sh"'_counterpoint_reply "$@"' sh "$last" $before[2..-1])
  if test "$reply" = @file
    __fish_complete_path "$last"
  else
    string split -n ' ' -- $reply
  end
end
complete -c counterpoint -f -a '(__counterpoint)'
"""


def table(parsers: Mapping[str, argparse.ArgumentParser | None]) -> dict[str, list[str]]:
    """What may follow what, from the parsers of the commands (None where one cannot be had).

    ``next ...`` are commands, ``flags ...`` the flags of one, ``values ... --flag`` what a flag takes, ``names`` the
    objectives, ``spec NAME`` an objective's parameters, ``spec NAME KEY`` a parameter's words.
    """
    found: dict[str, list[str]] = {}
    for command, parser in parsers.items():
        *group, last = command.split()
        found.setdefault(" ".join(["next", *group]), []).append(last)
        if group and group[0] not in found["next"]:
            found["next"].append(group[0])
        for action in parser._actions if parser else ():
            found.setdefault(f"flags {command}", []).extend(word for word in action.option_strings if len(word) > 2)
            for word in action.option_strings or [""]:
                if values := _values(action):
                    found[f"values {command} {word}".strip()] = values
    for name, kind in cp.registry.items():
        found.setdefault("names", []).append(
            name + ("(" if issubclass(kind, cp.Wrapper) else ":" if kind.hyper else "")
        )
        for hyper in kind.hyper.values():
            found.setdefault(f"spec {name}", []).append(f"{hyper.short}=")
            if words := list(hyper.options if isinstance(hyper, Choice) else getattr(hyper, "words", ())):
                found[f"spec {name} {hyper.short}"] = words
            elif isinstance(hyper, Flag):
                found[f"spec {name} {hyper.short}"] = ["true", "false"]
    return found


def _values(action: argparse.Action) -> list[str]:
    if action.choices is not None:
        return [str(one) for one in action.choices]
    if action.dest in ("objective", "spec", "baseline") or action.metavar == "SPEC":
        return [SPEC]
    return [FILE] if action.nargs != 0 and (action.type is Path or action.metavar in FILES) else []


def script(shell: str, parsers: Mapping[str, argparse.ArgumentParser | None]) -> str:
    """The script for ``bash``, ``zsh`` or ``fish``."""
    cases = "\n".join(
        f"    {shlex.quote(key)}) echo {shlex.quote(' '.join(words))};;" for key, words in table(parsers).items()
    )
    common = f'_counterpoint_table() {{\n  case "$1" in\n{cases}\n  esac\n}}{COMMON}'
    return f"# {HOW[shell]}\n{WRITE[shell](common)}"


def _fish_quoted(text: str) -> str:
    return "'" + re.sub(r"([\\'])", r"\\\1", text) + "'"


HOW = {
    "bash": "counterpoint completion bash > ~/.local/share/bash-completion/completions/counterpoint",
    "zsh": "counterpoint completion zsh > ~/.counterpoint.zsh; then in ~/.zshrc: source ~/.counterpoint.zsh",
    "fish": "counterpoint completion fish > ~/.config/fish/completions/counterpoint.fish",
}
WRITE: dict[str, Callable[[str], str]] = {
    "bash": lambda common: common + BASH,
    "zsh": lambda common: f"_counterpoint_sh={shlex.quote(common)}\n{ZSH}",
    "fish": lambda common: f"set -g __counterpoint_sh {_fish_quoted(common)}\n{FISH}",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=WRITE, help="whose script to print; its first line says where to put it")
