#!/usr/bin/env bash
# Builds the sdist, and each wheel that can be built here, into dist/; checks them; tries those that can be run here.
# What is left out is said, on a line that begins with NOT BUILT or NOT TRIED. `make wheels` calls this.
set -euo pipefail
cd "$(dirname "$0")/.."

# build TARGET [OPTION...]: for all CPythons from 3.11 on, and for the free-threaded one, which can't load that wheel.
build() {
	local target=$1 python
	shift
	for python in 3.11 3.14t; do
		maturin build --quiet --release --locked --out dist --target "$target" "$@" --interpreter "python$python"
	done
}

# with_std TARGET: the toolchain that has this target's standard library.
with_std() {
	PATH=$(bash tools/cross-std.sh "$1")/bin:$PATH
}

rm -rf dist
maturin sdist --out dist
for cpu in x86_64 aarch64; do
	with_std "$cpu-unknown-linux-gnu"
	build "$cpu-unknown-linux-gnu" --zig --compatibility manylinux2014
	with_std "$cpu-unknown-linux-musl"
	build "$cpu-unknown-linux-musl" --zig --compatibility musllinux_1_2
done
with_std x86_64-apple-darwin
with_std aarch64-apple-darwin
build universal2-apple-darwin --zig
if command -v x86_64-w64-mingw32-gcc >/dev/null; then
	with_std x86_64-pc-windows-gnu
	build x86_64-pc-windows-gnu
else
	echo "NOT BUILT: win_amd64 needs Debian's package gcc-mingw-w64-x86-64"
fi

twine check --strict dist/*
abi3audit --strict dist/*-abi3-*.whl
# Those for musl maturin has looked at: zig calls its library libc.so, a name that auditwheel does not know.
for wheel in dist/*manylinux*.whl; do
	auditwheel show "$wheel"
	auditwheel show "$wheel" | tr '\n' ' ' | grep -q 'consistent with the following platform tag: "manylinux_2_17_'
done
ls -l dist

python3 tools/try_wheel.py dist
if [ "$(id -u)" = 0 ] && command -v mmdebstrap qemu-aarch64-static >/dev/null; then
	bash tools/arm64.sh python3 tools/try_wheel.py dist
else
	echo "NOT TRIED: the wheel for 64-bit ARM needs root, and Debian's packages mmdebstrap and qemu-user-static"
fi
echo "NOT TRIED: musl, macOS and Windows; .github/workflows/release.yml tries each on its own system"
