"""Natural mistakes of four kinds of users: messages name what came, what was expected or the nearest right thing.

Nothing here trains: all of it must be found before the work starts.
"""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
import torch
from documents import ROOT

import counterpoint as cp
from counterpoint.integrations.command.main import main

A, B = torch.randn(8, 16), torch.randn(8, 16)
LABELS = torch.arange(8) % 3
LOSS = cp.InfoNCE(temperature=0.5)
COMPARE = "--metric json:r.json:acc --seed-flag --seed -- train.py"

PYTHON = {
    "labels as a view": (lambda: LOSS(A, LABELS), "view 2: expected floating-point values.*labels=..."),
    "logits as a view": (lambda: LOSS(A @ B.T), "at least 2 views, got 1.*from_logits"),
    "other batch": (lambda: LOSS(A, B[:7]), r"view 2: expected shape \(8, 16\) as view 1, got \(7, 16\)"),
    "images": (lambda: LOSS(*torch.randn(2, 8, 3, 4, 4)), r"expected shape \(batch, width\), got \(8, 3, 4, 4\)"),
    "an array": (lambda: LOSS(A.numpy(), B), "view 1: expected a tensor, got ndarray"),
    "a list": (lambda: LOSS([A, B]), r"got list: call loss_fn\(\*views\)"),
    "diverged": (lambda: LOSS(A * float("nan"), B), "128 of 128 values are NaN or infinite"),
    "one sample": (lambda: LOSS(A[:1], B[:1]), "at least 2 samples.*drop_last=True"),
    "too few labels": (lambda: LOSS(A, B, labels=LABELS[:4]), r"labels: expected 8 integers, got shape \(4\)"),
    "label": (lambda: LOSS(A, B, label=LABELS), "'label'. Did you mean 'labels'"),
    "tau": (lambda: cp.InfoNCE(tau=0.5), "'tau'. Known: temperature"),
    "no temperature": (lambda: cp.InfoNCE(temperature=0), "finite number with 0 < temperature.*got 0"),
    "a class": (lambda: cp.Treatment(cp.InfoNCE), "expected an objective or a spec string, got"),
}
COMMANDS = {
    "inject simsce -- train.py": "'simsce'. Did you mean 'simcse'",
    "inject hcl -- train.py": "it is an objective, as in: auto --objective hcl -- train.py",
    "inject train.py": "the host comes first, and the script behind --, as in: auto -- train.py",
    "inject logits -- trian.py": "script not found: trian.py",
    "inject logits --objective hlc -- train.py": "'hlc'. Did you mean 'hcl'",
    "inject logits --objective hcl:0.1 -- train.py": "expected a parameter's name, found '0'",
    "inject logits --site train.py -- train.py": "expected FILE:LINE or FILE:FUNCTION",
    f"compare auto --objectives host,hcl {COMPARE}": "separate objectives by spaces, as in host hcl",
    f"compare auto --objective host {COMPARE}": "expected two or more, such as host hcl",
    "compare auto --objective host hcl --metric acc -- train.py": "expected KIND:..., such as json:FILE:KEY",
    "compare auto --objective host hcl --metric json:r.json:acc -- train.py": "how does the script get its seed?",
    "compare auto --objective host hcl --metric json:r.json:acc --seed-flag --seed train.py": (
        "stand behind --: -- train.py"
    ),
    "compare auto --objective host hcl train.py": "stand behind --: -- train.py",
    "race auto -- train.py": "--metric: which number is compared?",
    "train graphs": "'graphs'. Did you mean 'graph'",
    "train graph --data ./nowhere": "is not the name of a data set",
    "train graph --config bad.json": "unknown key 'epohcs'. Did you mean 'epochs'",
    "train graph --objective infonce:t=-1": "0 < temperature or .*got -1",
    "train graph infonce": "unexpected 'infonce'",
    "train sentence": "are required: --data",
    "eval stss x": "'stss'. Did you mean 'sts'",
    "eval sts ./nowhere": "./nowhere is not a folder",
    "eval graph empty": "no runs in empty: no folder there has a run.json",
    "eval graph bad.json": "expected a folder of runs, got a file",
    "eval mteb no-model": "are required: --tasks",
    "advise a.npy b.npy": r"two arrays \(N, d\) of the same shape, got \(20, 8\) and \(19, 8\)",
    "evaluate graph": "'evaluate'. Did you mean 'eval'",
}


@pytest.mark.parametrize("mistake", PYTHON)
def test_a_mistake_in_python(mistake):
    call, message = PYTHON[mistake]
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize("line", COMMANDS)
def test_a_mistake_on_the_command_line(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests" / "support" / "toy_train.py", "train.py")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.json").write_text('{"epohcs": 3}')
    for name, rows in (("a", 20), ("b", 19)):
        np.save(f"{name}.npy", np.ones((rows, 8), dtype=np.float32))
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(main(line.split()))
    assert stopped.value.code == 2
    shown = capsys.readouterr().err
    assert re.search(COMMANDS[line], shown), shown
    assert "Traceback" not in shown
