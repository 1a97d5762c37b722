"""Which words of a command line are secrets."""

from __future__ import annotations

import shlex

import pytest

from counterpoint.integrations.secrets import redacted

RANDOM = "a1b2c3d4e5f6a7b8c9d0"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("--wandb-key abc", "--wandb-key REDACTED"),
        ("--wandb_key=abc", "--wandb_key=REDACTED"),
        ("--hf-token=abc --lr 1", "--hf-token=REDACTED --lr 1"),
        ("WANDB_API_KEY=abc train.py", "WANDB_API_KEY=REDACTED train.py"),
        ("-password abc", "-password REDACTED"),
        ("--db.password abc --apikey x", "--db.password REDACTED --apikey REDACTED"),
        ("model.auth_token=abc", "model.auth_token=REDACTED"),
        (f"--token {RANDOM} --key={RANDOM}", "--token REDACTED --key=REDACTED"),
        ("--out s3://me:abc@host/x", "--out s3://REDACTED@host/x"),
        ("--url=https://abc@host/x", "--url=https://REDACTED@host/x"),
        # settings, which tell runs apart
        ("--tokenizer bert --max-tokens 512 --keys a b", None),
        ("--label-key text --sort_key=size --key 3", None),
        ("--mask-token [MASK] --token-type cls", None),
        ("--password-length 8 --author me --monkey 3 --hotkey a", None),
        ("--hf-token --lr 1", None),
        ("--key path/to/a1/file_of_labels.txt", None),
    ],
)
def test_words(line, shown):
    assert redacted(shlex.split(line)) == shlex.split(line if shown is None else shown)
