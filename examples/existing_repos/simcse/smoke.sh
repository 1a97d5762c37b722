#!/usr/bin/env bash
# The unmodified SimCSE on a tiny random BERT: its own loss compared for five steps, then another objective.
#
#   smoke.sh [CLONE]       a clone of SimCSE, or ADNCE's folder sentence; without it, SimCSE is fetched; what is given is
#                          copied, never changed
#   PYTHON, OBJECTIVE      interpreter, and what to train with
set -euo pipefail
python=${PYTHON:-python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ $# -gt 0 ]; then
    cp -r "$1" "$work/clone"
else
    git clone --quiet --depth 1 https://github.com/princeton-nlp/SimCSE "$work/clone"
fi
cd "$work/clone"

# prints how this version of transformers is told to stay on the CPU
cpu=$("$python" -W ignore - "$work" <<'PYTHON'
import inspect
import random
import sys
from pathlib import Path

import transformers

work, words = Path(sys.argv[1]), [*"abcdefghijklmnopqrstuvwxyz"]
bert = work / "bert"
bert.mkdir()
(bert / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
transformers.BertTokenizer(str(bert / "vocab.txt")).save_pretrained(bert)
size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
config = transformers.BertConfig(vocab_size=len(words) + 5, **size)
transformers.BertForPreTraining(config).save_pretrained(bert)
(work / "text.txt").write_text("".join(" ".join(random.choices(words, k=6)) + "\n" for _ in range(64)))
print("--use_cpu" if "use_cpu" in inspect.signature(transformers.TrainingArguments).parameters else "--no_cuda")
PYTHON
)
HF_HUB_OFFLINE=1 "$python" -W ignore -m counterpoint.plugins.inject simcse \
    --objective "${OBJECTIVE:-adnce:mu=0.4,t=0.07}" --verify 5 -- train.py --model_name_or_path "$work/bert" \
    --train_file "$work/text.txt" --output_dir "$work/out" --max_steps 8 --per_device_train_batch_size 8 \
    --max_seq_length 12 --pooler_type cls --logging_steps 1 --do_train --report_to none "$cpu"
