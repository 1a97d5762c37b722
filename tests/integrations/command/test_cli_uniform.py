"""One grammar: the same flags, words and exit codes in every command, and examples that can be typed."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from documents import DOCUMENTS, ROOT, commands
from parsers import parsers

import counterpoint as cp
from counterpoint.integrations.command.main import build, main
from counterpoint.integrations.command.table import COMMANDS
from counterpoint.integrations.domain import about, default, defaults, domain
from counterpoint.integrations.store.errors import GridError

TRAINING = {"--objective", "--seed", "--seeds", "--out", "--device", "--jobs", "--on", "--resume", "--fresh", "--json"}
ANY_NUMBER = ("negative_weight",)  # a logarithm


@pytest.fixture(scope="module")
def known():
    return parsers()


@pytest.fixture(params=COMMANDS)
def command(request, known):
    parser = known[request.param]
    if parser is None:
        pytest.skip(f"the extra of {request.param} is not installed")
    return request.param, parser


def flags(parser):
    return {word: action for action in parser._actions for word in action.option_strings}


def test_every_argument_says_what_it_is(command):
    for action in command[1]._actions:
        assert action.help, action
        assert not action.help.endswith("."), action
        formatted = command[1]._get_formatter()._expand_help(action)
        assert "%" not in formatted.replace(" %", ""), action  # accuracy is in %


def test_every_flag_that_takes_a_value_shows_its_default(command):
    for flag, action in flags(command[1]).items():
        if action.nargs == 0:
            continue
        shown = re.search(r"\((.+)\)$", command[1]._get_formatter()._expand_help(action))
        assert shown, flag
        if type(action.default) in (int, float, str):
            assert shown[1] == str(action.default), flag


def test_a_setting_shows_its_default(command):
    """What a flag leaves out comes from the settings of the domain."""
    what, _, name = command[0].partition(" ")
    if what not in ("train", "tune"):
        return
    for setting, value in defaults(domain(name).settings).items():
        action = flags(command[1]).get(f"--{setting.replace('_', '-')}")
        if action is not None and action.default is None and type(value) in (int, float, str):
            assert re.search(rf"\({re.escape(str(value))}(, or the preset's)?\)$", action.help), setting


def test_a_number_of_the_settings_has_a_range(command):
    """A flag with a nonsensical value is refused by its name, before any training."""
    what, _, name = command[0].partition(" ")
    if what != "train" or name == "control":  # whose settings are all above 0
        return
    for setting in fields(domain(name).settings):
        limits = about(setting)
        if (limits.type or type(default(setting))) in (int, float) and setting.name not in ANY_NUMBER:
            assert limits.low is not None or limits.above is not None, setting.name


def test_the_device_has_one_default():
    devices = [flags(parser)["--device"] for parser in parsers().values() if "--device" in flags(parser)]
    assert len(devices) > 8
    assert {(action.default, action.help) for action in devices} == {("cpu", devices[0].help)}


MISSPELLED = [
    ("trian graph", "counterpoint: unknown command 'trian'. Did you mean 'train'?"),
    ("train grpah", "counterpoint train: unknown command 'grpah'. Did you mean 'graph'?"),
    ("train", "counterpoint train: the following arguments are required: graph|image|sentence|control"),
    ("--verison", "counterpoint: unknown flag --verison. Did you mean '--version'?"),
    ("train graph --objectve hcl", "unknown flag --objectve. Did you mean '--objective'?"),
    ("train graph --objectve=hcl", "unknown flag --objectve. Did you mean '--objective'?"),
    ("train graph MUTAG", "unexpected 'MUTAG'. Did you mean --data MUTAG?"),
    ("train control walker-walk", "unexpected 'walker-walk'. Did you mean --task walker-walk?"),
    ("train graph --objective hlc", "--objective: unknown objective 'hlc'. Did you mean 'hcl'?"),
    ("train graph --objective infonce,hcl", "'infonce,hcl': separate objectives by spaces, as in infonce hcl"),
    ("train graph --objective infonce;ids=y", "ids=y: only inject, compare and race look up names of a script"),
    ("train graph --objective hcl:bta=1", "--objective: hcl: unknown parameter 'bta'. Did you mean 'beta'?"),
    ("train graph --augment dnoses", "--augment: unknown augment 'dnoses'. Did you mean 'dnodes'?"),
    ("train image --method simcrl", "--method: unknown method 'simcrl'. Did you mean 'simclr'?"),
    ("train image --preset ancde", "--preset: unknown preset 'ancde'. Did you mean 'adnce'?"),
    ("train image --probe liner", "--probe: unknown probe 'liner'. Did you mean 'linear'?"),
    ("train sentence --data x.txt --preset adcne-bert", "Did you mean 'adnce-bert'?"),
    ("eval sts model --sets STSB-tst", "--sets: unknown sets 'STSB-tst'. Did you mean 'STSB-test'?"),
    ("eval transfer model --tasks TERC", "Did you mean 'TREC'?"),
    ("eval image runs --protocol adma", "--protocol: unknown protocol 'adma'. Did you mean 'adam'?"),
    ("eval graph runs --probe smv", "--probe: unknown probe 'smv'. Did you mean 'svm'?"),
    ("report runs --format jsn", "--format: unknown format 'jsn'. Did you mean 'json'?"),
    ("demo --domains imgae", "Did you mean 'image'?"),
    ("doctor --json found.json", "unexpected 'found.json': --json takes no file, it prints to standard output"),
    ("race auto --json race.json -- train.py", "unexpected 'race.json': --json takes no file"),
    ("train graph --objective hcl:\x1b[31m=1", "\n  hcl:?[31m=1\n      ^\n"),
    ("train graph \x1b[31m", r"unexpected '\x1b[31m'"),
    ("train graph --\x1b[31m", r"unknown flag --\x1b[31m"),
]


@pytest.mark.parametrize(("line", "expected"), MISSPELLED)
def test_a_misspelled_word_is_answered_with_the_nearest(line, expected, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(line.split())
    out, err = capsys.readouterr()
    assert (stopped.value.code, out) == (2, "")
    assert expected in err
    assert err.startswith("counterpoint")
    assert err.splitlines()[-1].startswith("see counterpoint ")


def test_flags_are_words(command):
    for word in flags(command[1]):
        assert re.fullmatch(r"-h|--[a-z]+(-[a-z]+)*", word), word


def test_every_command_prints_json(command):
    assert "--json" in flags(command[1])


def test_what_trains_takes_the_same_flags_with_the_same_words(command, known):
    name, parser = command
    if not name.startswith(("train", "tune", "demo")):
        return
    assert set(flags(parser)) >= TRAINING
    like = flags(known["demo"])
    for flag in TRAINING:
        one, other = flags(parser)[flag], like[flag]
        assert (one.metavar, one.nargs, one.dest) == (other.metavar, other.nargs, other.dest), flag
        assert one.help == other.help or flag == "--objective", flag  # which says what there is without it


def parse(words):
    asked = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), "")
    return build(asked).parse_args(["cpu" if word == "cuda" else word for word in words])


def check(words):
    """Parse a command line; its objectives exist, whether the parser looks at them or not."""
    objectives = getattr(parse(words), "objective", None) or []
    for spec in [objectives] if isinstance(objectives, str) else objectives:
        assert spec == "host" or cp.objective(spec).terms(), spec


def test_its_examples_can_be_typed(command):
    name = command[0]
    examples = COMMANDS[name].examples
    found = list(commands("\n".join(f"    counterpoint {line}" for line in examples)))
    assert found
    assert len(examples) <= 5
    for _, *words in found:
        assert words[: len(name.split())] == name.split()
        check(words)


@pytest.mark.parametrize("path", DOCUMENTS)
def test_what_the_documents_say_can_be_typed(path, known):
    text = re.sub(r"```mermaid.*?```", "", (ROOT / path).read_text(encoding="utf-8"), flags=re.S)
    found = [words[1:] for words in commands(text) if words[0] == "counterpoint"]
    first_words = "|".join({name.split()[0] for name in COMMANDS})
    mentions = re.findall(rf'(?<!" )\bcounterpoint (?:{first_words})\b[^`\n]*', text)  # not behind uvx --from "..."
    assert len(found) == sum("..." not in one for one in mentions), "a command stands where commands() does not look"
    groups = [[name.split()[0]] for name in COMMANDS if " " in name]
    for words in found:
        if words in groups:
            continue  # "counterpoint train" stands for all commands of the group
        name = next(name for name in COMMANDS if words[: len(name.split())] == name.split())
        if known[name] is not None and not {"NAME", "--help"} & set(words):
            check(words)


def test_exit_codes(command, capsys, monkeypatch):
    name = command[0]
    with pytest.raises(SystemExit) as stopped:
        main([*name.split(), "--nonsense"])
    if name != "inject":  # whose further words belong to the script
        assert stopped.value.code == 2
    for error, code in ((KeyboardInterrupt(), 130), (GridError("1 of 2 runs failed", []), 1), (ValueError("no"), 2)):

        def run(given, error=error):
            raise error

        if COMMANDS[name].script:
            continue
        monkeypatch.setattr(COMMANDS[name], "run", run)
        monkeypatch.setattr(COMMANDS[name], "arguments", lambda parser: None)
        capsys.readouterr()
        assert main(name.split()) == code
        err = capsys.readouterr().err
        assert err == f"counterpoint {name}: {str(error) or 'stopped'}\n"
