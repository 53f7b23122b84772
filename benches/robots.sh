#!/usr/bin/env bash
# Everything about robots that needs GPUs, within a number of seconds: the recipes with five seeds, their policies in
# Gymnasium's own environments, same bits on one and two GPUs, and what limits a step. Results go to $OUT.
#
#   python benches/physics.py write && python benches/mujoco_returns.py models build/models   # where mujoco is installed
#   OUT=FOLDER bash benches/robots.sh SECONDS [PART ...]                                     # where the GPUs are
#
# Parts: bits, returns, play (needs gymnasium and mujoco), profile (needs ncu); by default all, in turn. The runs that
# $OUT/runs.tar has already are not trained again. Policies are packed every half minute, so that a machine that is
# taken away loses little.
set -uo pipefail
cd "$(dirname "$0")/.."
until=${1:?seconds}
parts=${*:2}
parts=${parts:-bits returns play profile}
export OPERANT_MODELS=$PWD/build/models PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore
kept=$(mktemp -d)
[ ! -e "$OUT/runs.tar" ] || tar xf "$OUT/runs.tar" -C "$kept"

left() { echo $((until - SECONDS - ${1:-0})); }
pack() { tar cf "$OUT/.runs.tar" -C "$kept" . && mv "$OUT/.runs.tar" "$OUT/runs.tar"; }

returns() {
    (while sleep 30; do pack; done) &
    local packer=$!
    python3 benches/mujoco_returns.py session --out "$kept" --share 3 --budget "$(left 60)" >"$OUT/returns.txt"
    kill "$packer"
    pack
}

play() { timeout "$(left)" python3 benches/mujoco_returns.py play "$kept" --episodes 1000 --parts 4 >"$OUT/play.txt"; }

bits() {
    timeout "$(left)" python3 benches/robot_bits.py runs --ranks "$(nvidia-smi -L | wc -l)" >"$OUT/bits_runs.txt"
    timeout "$(left)" python3 benches/robot_bits.py worlds >"$OUT/bits_worlds.txt"
}

# One launch of five steps, after 60 in which humanoids fall.
profile() {
    local model
    for model in humanoid humanoidstandup ant half_cheetah; do
        timeout "$(left)" ncu --profile-from-start off --set detailed --import-source no --clock-control none \
            python3 benches/physics.py profile "$model" --lanes 8192 --launches 60 >"$OUT/profile_$model.txt" 2>&1
    done
}

for part in $parts; do
    [ "$(left)" -gt 30 ] && "$part"
    echo "$part ended after $SECONDS s"
done
