#!/usr/bin/env bash
# The unmodified CURL on cartpole, few updates: its own loss compared for five of them, then another objective.
#
#   smoke.sh [CLONE DMC2GYM]     without these two folders they are fetched; CLONE is copied, never changed
#   PYTHON, OBJECTIVE            interpreter, and what to train with
set -euo pipefail
python=${PYTHON:-python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ $# -gt 0 ]; then
    cp -r "$1" "$work/clone"
    dmc2gym=$(realpath "$2")
else
    git clone --quiet --depth 1 https://github.com/MishaLaskin/curl "$work/clone"
    git clone --quiet --depth 1 https://github.com/denisyarats/dmc2gym "$work/dmc2gym"
    dmc2gym=$work/dmc2gym
fi
cd "$work/clone"

export MUJOCO_GL=${MUJOCO_GL:-egl}
PYTHONPATH=$dmc2gym${PYTHONPATH:+:$PYTHONPATH} "$python" -W ignore -m counterpoint.plugins.inject curl \
    --objective "${OBJECTIVE:-infonce:t=1 + 0.1*dp}" --verify 5 -- train.py --domain_name cartpole \
    --task_name swingup --encoder_type pixel --action_repeat 8 --pre_transform_image_size 100 --image_size 84 \
    --batch_size 8 --hidden_dim 64 --num_filters 8 --replay_buffer_capacity 100 --init_steps 20 --num_train_steps 30 \
    --num_eval_episodes 1 --work_dir .
