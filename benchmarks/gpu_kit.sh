#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs a kit made by gpu_kit.py: sh KIT/run.sh MINUTES OUT CHECKOUT [PART...]
# Runs the parts by priority and ends within MINUTES. Writes report.md, logs and drafters to OUT: at most eight files of
# 16 MiB. Installed packages stay in KIT for the next call.
# The parts are tests, speed, processor and train (see docs/gpu.md). WITHOUT_GPU=1 tries all parts on the CPU, with
# small sizes.
set -u
ends=$(($(date +%s) + $1 * 60 - 15))
mkdir -p "$2" && out=$(realpath "$2") eaglecpp=$(realpath "$3") || exit 1
shift 3
parts=" ${*:-tests speed processor} "
cd "$(dirname "$0")" || exit 1
kit=$PWD models=$PWD/models scripts=$eaglecpp/benchmarks pair=$eaglecpp/examples/demo_model/pair report=$out/report.md
export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 EAGLECPP_HOME="$kit/home"
mkdir -p logs models
# Even if a part is killed, the logs are archived.
trap 'tar czf "$out/logs.tar.gz" logs' EXIT

# step NAME SECONDS COMMAND...: runs a command, and stops the command at the time limit. Adds a line to the report. If
# the command failed, adds the end of its log too.
step() {
    name=$1 limit=$2 start=$(date +%s)
    shift 2
    [ $((ends - start)) -ge "$limit" ] || limit=$((ends - start))
    [ "$limit" -gt 3 ] || { echo "$name: no time left" | tee -a "$report"; return 1; }
    timeout -k 5 "$limit" "$@" > "logs/$name.log" 2>&1
    status=$?
    case $status in 0) how=ok ;; 124 | 137) how="cut off" ;; *) how="failed ($status)" ;; esac
    echo "$name: $how, $(($(date +%s) - start)) s" | tee -a "$report"
    [ "$how" != "failed ($status)" ] || { printf '\n```\n' && tail -n 25 "logs/$name.log" && printf '```\n\n'; } >> "$report"
    return $status
}
# shows NAME: copies the log of a step to the report, even if the step was stopped at its time limit.
shows() { { echo && cat "logs/$1.log" && echo; } >> "$report"; }
wants() { case $parts in *" $1 "*) true ;; *) false ;; esac; }

{ echo "# $(date -u '+%F %T'), $(uname -srm)"; nvidia-smi -L; } >> "$report" 2> /dev/null
export PATH="$kit/venv/bin:$PATH"
if [ ! -f installed ]; then
    # The venv uses the packages of the machine, above all PyTorch. python3 may itself belong to a venv.
    outer=$(python3 -c 'import site; print(*site.getsitepackages(), sep="\n")')
    step venv 60 python3 -m venv --system-site-packages venv || exit 1
    echo "$outer" > "$(echo venv/lib/python3*/site-packages)/outer.pth"
    step install 60 sh -c 'python -m tarfile -e built.tar.xz . && cp -a built/site/. venv/lib/python3*/site-packages &&
        for wheel in wheels/*.whl; do [ ! -f "$wheel" ] || pip install -q --no-deps "$wheel" || exit; done' || exit 1
    touch installed
    step doctor 60 python -P -m eaglecpp doctor && shows doctor
fi

# SmolLM2 is stored in pieces next to the kit. Some pieces may be missing.
smollm2=$models/SmolLM2-135M-Instruct.Q4_1.gguf draft=$eaglecpp/eaglecpp/models/smollm2-eagle31-Q4_1.gguf
[ -f "$smollm2" ] || step smollm2 30 sh -c 'cat "$1".tar.* > "$2.part" && mv "$2.part" "$2" && sha256sum -c smollm2.sha256' \
    sh "$kit" "$smollm2" || { rm -f "$smollm2"; echo "SmolLM2 did not come along whole: the demo model is measured alone"; }

few='' gpu='' padding='--layers 60 --ffn 16384'
[ -z "${WITHOUT_GPU:-}" ] || few="--tokens 16 --repeats 1" gpu=--without-gpu padding='--layers 16 --ffn 4096'
server=$kit/built/server/llama-server
[ -x "$server" ] && server="--server $server" || server=''

if wants tests; then
    backend=${GGML_BACKEND_PATH:-}
    if [ -n "$gpu" ] && site=$(echo venv/lib/python3*/site-packages) && step counting-device 90 c++ -std=c++20 -O1 -shared \
        -fPIC -I "$eaglecpp/native" -I "$site/include" -o libcounting_device.so "$eaglecpp"/tests/native/gpu/counting_*.cpp \
        -L "$site/lib" -lggml-base -lggml -Wl,-rpath,"$(realpath "$site/lib")"; then backend=$kit/libcounting_device.so; fi
    step tests 150 env ${backend:+"GGML_BACKEND_PATH=$backend"} python -P -m pytest -v --tb=short -p no:cacheprovider \
        -o addopts=--import-mode=importlib "$eaglecpp/tests/gpu"
    grep -c ' PASSED' logs/tests.log | sed 's/$/ passed/' >> "$report"
    grep -E ' (FAILED|ERROR)|^=.* in ' logs/tests.log >> "$report"
fi

if wants speed || wants processor; then
    # Drafters for padded copies of the demo target. A padded copy costs as much as a model of 1 GB.
    [ -f models/demo-draft.gguf ] || step demo 60 sh -c "for draft in $pair/demo-draft.gguf $eaglecpp/tests/fixtures/demo-ds*.gguf \
        $eaglecpp/tests/fixtures/demo-dflash2.gguf; do python $scripts/pad_target.py $pair/demo-target.gguf models/padded.gguf \
        $padding --draft \$draft --draft-out models/\$(basename \$draft) || exit; done"
fi
small=''
[ ! -f "$smollm2" ] || small="$smollm2 $draft"
if wants speed; then
    demo=''
    for drafter in models/demo-*.gguf; do demo="$demo --demo models/padded.gguf $drafter"; done
    sizes="--sizes-of-8b $models"
    [ -z "$gpu" ] || sizes=''  # the sizes are measured below, with the counting device, which computes nothing
    # shellcheck disable=SC2086
    step speed 230 python "$scripts/gpu.py" $small $demo $sizes $server --tokens 128 --repeats 2 $few $gpu
    shows speed
    if [ -f libcounting_device.so ]; then
        # shellcheck disable=SC2086
        step sizes 60 env GGML_BACKEND_PATH="$kit/libcounting_device.so" EAGLECPP_COUNTING_IDLE=1 \
            EAGLECPP_COUNTING_MEMORY=$((64 << 30)) python "$scripts/gpu.py" --sizes-of-8b "$models" --users 1 $few
        shows sizes
    fi
fi

if wants processor; then
    [ -n "$small" ] || small="--demo $pair/demo-target.gguf $pair/demo-draft.gguf"
    counts=''
    for n in 8 4 16 2 1; do [ "$n" -gt "$(getconf _NPROCESSORS_ONLN)" ] || counts=$counts,$n; done
    # shellcheck disable=SC2086
    step processor 180 env CUDA_VISIBLE_DEVICES= python "$scripts/gpu.py" $small $server --without-gpu -ngl 0 --users 1 \
        --threads "${counts#,}" --tokens 64 --repeats 1 $few
    shows processor
fi

if wants train && [ -f answers.npz ] && [ -f "$smollm2" ]; then
    { echo "| layers | COUNT | million tokens | seconds | tokens a round |"; echo "| --- | --- | --- | --- | --- |"; } > table
    left=$((ends - $(date +%s))) running=''
    # The runs are concurrent, because launching kernels limits the speed of a single run.
    for arm in 3 "3 --count" 5 "5 --count"; do
        name=train-$(echo "$arm" | tr -d ' -')
        # shellcheck disable=SC2086
        (step "$name" "$left" python "$scripts/gpu_train.py" train answers.npz --target "$smollm2" --draft "$draft" \
            --out "$out" --seconds $((left - 30)) --layers $arm ${gpu:+--tokens 600 --batch-tokens 200}
        grep '^| ' "logs/$name.log" >> table) &
        running="$running $!"
    done
    # shellcheck disable=SC2086
    wait $running
    { echo && cat table && echo; } >> "$report"
fi
echo "$report"
