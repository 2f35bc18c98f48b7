#!/usr/bin/env bash
# Runs the tests as Windows programs, under Wine: the core's Rust tests, then the Python tests in a CPython for Windows on
# the wheel, installed as users install it. Ends with what was run, and what was not and why.
#
#   tools/windows.sh              all of it
#   tools/windows.sh rust         the Rust tests alone; more arguments are for the test programs
#   tools/windows.sh python ...   the Python tests alone; more arguments are pytest's
set -euo pipefail
cd "$(dirname "$0")/.."

target=x86_64-pc-windows-gnu
sysroot=$(bash tools/cross-std.sh $target)
WINEPREFIX=$(bash tools/wine-python.sh)
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
export WINEPREFIX WINEDEBUG=-all WINEDLLOVERRIDES='mscoree=;mshtml='
export PATH="$sysroot/bin:$PATH" CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=/usr/lib/wine/wine64
# Wine can't delete what is open, so the tests leave things behind.
find "$WINEPREFIX"/drive_c/users/*/Temp -mindepth 1 -maxdepth 1 -mmin +60 -exec rm -rf {} +

rust() {
    cargo test --locked --features failpoints --target $target --no-fail-fast -- "$@" </dev/null 2>&1 | cat
}

python() {
    [ -x .venv/bin/maturin ] || make .venv/ready
    .venv/bin/maturin build --quiet --release --locked --target $target --out "$home" </dev/null
    .venv/bin/python -m pip install --quiet --no-deps --target "$home/installed" --platform win_amd64 \
        --only-binary=:all: --python-version 3.13 "$home"/*.whl
    PYTHONPATH=Z:${home//\//\\}\\installed \
        /usr/lib/wine/wine64 "$WINEPREFIX/python/python.exe" -m pytest -p no:cacheprovider --timeout 900 \
        --basetemp="Z:${home//\//\\}\\temp" "$@" </dev/null 2>&1 | cat
}

case ${1:-all} in
    all)
        failed=0
        for part in rust python; do bash tools/windows.sh $part || failed=1; done
        exit $failed
        ;;
    rust | python) "$@" ;;
    *) echo "usage: $0 [rust|python] [arguments]" >&2 && exit 2 ;;
esac
