"""The notes of a comparison; that they are in every format of a report is tested there."""

from argparse import Namespace

from reports import make, noisy

from counterpoint.integrations import report
from counterpoint.integrations.compare.notes import looks, to_settle, write_notes

BASE, OTHER = "infonce:t=0.2,denominator=with_positive", "hcl:t=0.2,denominator=with_positive,prior=0.1,beta=1"


def test_a_second_look_at_the_same_seeds_is_said(tmp_path):
    def compared(*rows, seeds):
        table = {("train.py", row): noisy(70, seeds) for row in rows}
        return make(tmp_path, table, domain="compare")

    first = compared(BASE, OTHER, seeds=3)
    assert [*looks(first)] == []
    write_notes("compare", first, [], {}, None, "")
    assert [*looks(first)] == []  # the same command again
    assert [*looks(compared(BASE, OTHER, "dcl:t=0.2", seeds=3))] == []  # a further row
    (said,) = looks(compared(BASE, OTHER, seeds=5))
    assert said.startswith("3 of these 5 seeds were compared before: ")
    assert "--seed 100" in said
    assert [*looks(compared(BASE, seeds=5))] == []  # of one row, nothing was compared


def test_fresh_seeds_are_a_first_look(tmp_path):
    rows = {("train.py", row): noisy(70, 3) for row in (BASE, OTHER)}
    write_notes("compare", make(tmp_path, rows, domain="compare"), [], {}, None, "")
    fresh = {("train.py", row): noisy(70, 5, start=100) for row in (BASE, OTHER)}
    assert [*looks(make(tmp_path, fresh, domain="compare"))] == []


def test_the_command_that_would_tell_is_printed(tmp_path):
    values = noisy(70, 6)
    larger = {seed: value + 20 for seed, value in values.items()}
    alike = {seed: value + 0.9 * (-1) ** seed for seed, value in values.items()}

    def columns(name, other):
        runs = make(tmp_path / name, {("train.py", BASE): values, ("train.py", OTHER): other}, domain="compare")
        return report.summarise(runs, baseline=BASE, margin=0.5).columns

    given = Namespace(seed=100, settings=Namespace(tune=0))
    assert [*to_settle(columns("larger", larger), given)] == []
    (column,) = found = columns("alike", alike)
    (verdict,) = column.compared.values()
    assert verdict.kind == "cannot tell"
    assert verdict.pairs == 6
    (said,) = to_settle(found, given)
    seeds = 6 + verdict.missing
    assert said.endswith(f": the same command, with --seed 200 --seeds {seeds} --out confirm")
    assert said.startswith("to settle hcl:t=0.2 ")
    given.settings.tune = 3
    (said,) = to_settle(found, given)
    assert ": the same command, with the tuned rows as --objective and without --tune, with --seed 200 " in said
