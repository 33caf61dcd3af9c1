#!/bin/sh
# SPDX-License-Identifier: MIT
# The one command of a kit that gpu_kit.py made: builds llama-cpp-python for the GPU, then eaglecpp, tests and measures,
# and writes report.md as it goes. It needs Python, a C++ compiler and, for CUDA, its toolkit; no network. Elsewhere than on
# NVIDIA's cards give CMAKE_ARGS (docs/gpu.md). WITHOUT_GPU=1 tries it on the CPU. $1: the checkout, where the kit lacks it.
set -u
checkout=${1:+$(realpath "$1")}
cd "$(dirname "$0")" || exit 1
kit=$PWD
report=$kit/report.md
export PIP_NO_INDEX=1 PIP_FIND_LINKS="$kit/wheels" PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
export CMAKE_ARGS="${CMAKE_ARGS--DGGML_CUDA=on}" CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
export EAGLECPP_HOME="$kit/home"
mkdir -p logs models build
set --

# step NAME SECONDS COMMAND...: one line of the report, and the end of the log where it failed. SLOW=3: three times as long
step() {
    name=$1 limit=$(($2 * ${SLOW:-1})) start=$(date +%s)
    shift 2
    timeout "$limit" "$@" > "logs/$name.log" 2>&1
    status=$?
    echo "$name: $([ $status = 0 ] && echo ok || echo "failed ($status)"), $(($(date +%s) - start)) s" | tee -a "$report"
    [ $status = 0 ] || { printf '\n```\n' && tail -n 25 "logs/$name.log" && printf '```\n\n'; } >> "$report"
    return $status
}
# shows NAME: its log belongs to the report
shows() { { echo && cat "logs/$1.log" && echo; } >> "$report"; }

{ echo "# $(date -u +%F), $(uname -srm)"; nvidia-smi -L; nvcc --version | tail -n 1; echo; } > "$report" 2> /dev/null

# packages that the machine has are used, PyTorch above all, which the kit lacks
outer=$(python3 -c 'import site; print(*site.getsitepackages(), sep="\n")')  # python3 may be one of a venv itself
step venv 60 python3 -m venv --system-site-packages venv || exit 1
echo "$outer" > "$(echo venv/lib/python3*/site-packages)/outer.pth"
export PATH="$kit/venv/bin:$PATH"
step unpack 60 sh -c 'mkdir src; for f in sources/*; do [ ! -f "$f" ] || python -m tarfile -e "$f" src || exit; done' || exit 1
llama=$(echo src/llama_cpp_python-*) eaglecpp=${checkout:-$kit/$(echo src/eaglecpp-*)}
site=$(python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
if [ -f built.tar.xz ]; then  # where the kit was made
    step installed 60 sh -c 'python -m tarfile -e built.tar.xz . && cp -a built/site/. "$1"' sh "$site" || exit 1
else
    step tools 120 pip install scikit-build-core nanobind ninja cmake || exit 1
    step llama-cpp-python 600 pip install -v --no-build-isolation --force-reinstall "$kit/$llama" || exit 1
    step eaglecpp 300 pip install --no-build-isolation --force-reinstall --no-deps "$eaglecpp" || exit 1
fi
step requirements 60 pip install eaglecpp pytest || exit 1
step doctor 60 python -P -m eaglecpp doctor && shows doctor

# llama.cpp's own server, over the ggml that is installed
server=$kit/built/server/llama-server
if [ ! -x "$server" ]; then
    step llama-server-configure 60 cmake -G Ninja -S "$llama/vendor/llama.cpp" -B build/server -DCMAKE_BUILD_TYPE=Release \
        -DLLAMA_USE_SYSTEM_GGML=ON -DCMAKE_PREFIX_PATH="$site" -DCMAKE_BUILD_RPATH="$site/lib" -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
    step llama-server 300 cmake --build build/server --target llama-server
    server=build/server/bin/llama-server
fi

# the drafter's parity needs PyTorch
python -c 'import torch' 2> /dev/null || set -- --ignore "$eaglecpp/tests/gpu/test_drafter.py"
step tests 200 python -P -m pytest -q -p no:cacheprovider -o addopts=--import-mode=importlib "$eaglecpp/tests/gpu" "$@"
tail -n 1 logs/tests.log >> "$report"

models=$kit/models scripts=$eaglecpp/benchmarks pair=$eaglecpp/examples/demo_model/pair
set --
# SmolLM2 lies in pieces beside the kit, where it was carried
smollm2=$models/SmolLM2-135M-Instruct.Q4_1.gguf draft=$eaglecpp/eaglecpp/models/smollm2-eagle31-Q4_1.gguf
if step smollm2 60 sh -c 'cat "$1".tar.* > "$2" && sha256sum -c smollm2.sha256' sh "$kit" "$smollm2"; then
    step padded 60 python "$scripts/pad_target.py" "$smollm2" "$models/smollm2-padded.gguf" --layers 60 --ffn 14336 \
        --draft "$draft" --draft-out "$models/smollm2-padded-draft.gguf" &&
        set -- "$models/smollm2-padded.gguf" "$models/smollm2-padded-draft.gguf"
    set -- "$@" "$smollm2" "$draft"
    vocabulary=$smollm2
else
    echo "SmolLM2 did not come along whole: the demo model is measured alone" | tee -a "$report"
fi
# what was trained for the demo target: EAGLE 3.1, which drafts chains, and block drafters
step demo 60 sh -c "for draft in $pair/demo-draft.gguf $eaglecpp/tests/fixtures/demo-*.gguf; do
    python $scripts/pad_target.py $pair/demo-target.gguf $models/padded.gguf --layers 60 --ffn 16384 \
        --draft \$draft --draft-out $models/\$(basename \$draft) || exit; done"
step rows 120 sh -c "python $scripts/random_target.py ${vocabulary:-$pair/demo-target.gguf} $models F16 &&
    python $scripts/pad_target.py $models/random-F16.gguf $models/rows.gguf --type Q8_0 --type Q4_K_M --threads $(nproc)"
step counter 20 cc -shared -fPIC -O1 -o build/count_cuda.so "$scripts/count_cuda.c" -ldl
step counting-device 60 c++ -std=c++20 -O1 -shared -fPIC -I "$eaglecpp/native" -I "$site/include" -o build/libcounting_device.so \
    "$eaglecpp/tests/native/gpu/counting_device.cpp" -L "$site/lib" -lggml-base -lggml
for draft in "$models"/demo-*.gguf; do [ -f "$draft" ] && set -- "$@" --demo "$models/padded.gguf" "$draft"; done
for kind in rows-Q4_K_M rows-Q8_0 random-F16; do [ -f "$models/$kind.gguf" ] && set -- "$@" --rows "$models/$kind.gguf"; done
[ -x "$server" ] && set -- "$@" --server "$server"
if [ -n "${WITHOUT_GPU:-}" ]; then
    set -- "$@" --without-gpu --tokens 16 --repeats 1
else
    set -- "$@" --sizes-of-8b "$models"
fi
step measure 900 env LD_PRELOAD="$kit/build/count_cuda.so" python "$scripts/gpu.py" "$@"
shows measure
# the same rounds as far as they can be counted without a card: what is asked of a device that computes nothing
step counts 120 env GGML_BACKEND_PATH="$kit/build/libcounting_device.so" CUDA_VISIBLE_DEVICES= \
    EAGLECPP_COUNTING_IDLE=1 EAGLECPP_COUNTING_MEMORY=$((64 << 30)) \
    python "$scripts/gpu.py" --sizes-of-8b "$models" --repeats 1 --tokens 60 && shows counts
echo "$report"
