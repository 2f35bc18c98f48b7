#!/usr/bin/env bash
# Makes Rust's standard library for another target, on a Debian machine whose
# toolchain has it neither ready nor as source, and prints the path of a sysroot
# that holds it. Only that path goes to stdout; progress goes to stderr.
#
#   sysroot=$(./cross-std.sh x86_64-pc-windows-gnu)
#   PATH="$sysroot/bin:$PATH" cargo check  --target x86_64-pc-windows-gnu
#   PATH="$sysroot/bin:$PATH" cargo clippy --target x86_64-pc-windows-gnu
# RUSTFLAGS="--sysroot=$sysroot" does as well; RUSTC alone does not do for clippy.
#
# Where `rustup target add TARGET` works, that is simpler: this script then
# prints the toolchain's own sysroot and does nothing else.
#
# The sysroot is a copy of the toolchain (hard links, so almost no space), plus
# the standard library's source from Debian's package rust-src, plus the library
# of each target asked for. It lies in
#   ${XDG_CACHE_HOME:-$HOME/.cache}/pacchettino/<rustc release>-<commit hash>-lto/
# and can be deleted at any time. Each part is made in a temporary folder there
# and renamed when complete, so a run that is cut short can just be repeated.
#
# It is enough for check and clippy. Building also needs a linker for the target:
# zig links for all but Windows, and brings the C library's own files along (for
# windows-gnu: mingw's, whose dlltool many crates need even without linking).
#
# Environment: RUSTC, the rustc to use (default: rustc); CROSS_STD_SUITES, the
# Debian suites to look in, in order (default: "trixie-backports sid").
set -euo pipefail
exec 3>&1 1>&2 # from here on, stdout is stderr; 3 is the real stdout

say() { printf 'cross-std: %s\n' "$*"; }
die() { printf 'cross-std: error: %s\n' "$@"; exit 1; }

[ $# -eq 1 ] && [ "${1#-}" = "$1" ] || die "usage: $0 TARGET, for example $0 x86_64-pc-windows-gnu"
target=$1
rustc=${RUSTC:-rustc}
command -v "$rustc" >/dev/null || die "there is no '$rustc': install Rust with rustup, or set RUSTC."
targets=$("$rustc" --print target-list)
grep -qxF -- "$target" <<<"$targets" ||
    die "rustc knows no target '$target'; 'rustc --print target-list' names them all."

leave_if_ready() { # SYSROOT: prints it and exits, if it has the target's library
    if compgen -G "$1/lib/rustlib/$target/lib/libstd-*.rlib" >/dev/null; then
        printf '%s\n' "$1" >&3
        exit
    fi
}
toolchain=$("$rustc" --print sysroot)
leave_if_ready "$toolchain"

version=$("$rustc" -vV)
release=$(sed -n 's/^release: //p' <<<"$version")
hash=$(sed -n 's/^commit-hash: //p' <<<"$version")
base=${XDG_CACHE_HOME:-${HOME:?is not set}/.cache}/pacchettino/$release-$hash-lto
case $base in
    *[[:space:]]*) die "mingw's tools and RUSTFLAGS cannot cope with a space in $base:" \
        "set XDG_CACHE_HOME to a folder without one." ;;
    /*) ;;
    *) die "XDG_CACHE_HOME must be an absolute path, not '$XDG_CACHE_HOME'." ;;
esac
sysroot=$base/sysroot
leave_if_ready "$sysroot"

# --- Something is missing. One run at a time; leftovers of dead runs go away.
for tool in apt-get apt-cache dpkg-deb flock; do
    command -v "$tool" >/dev/null || die "this needs '$tool', so it works on Debian only." \
        "Elsewhere use 'rustup target add $target'."
done
case $toolchain in /usr | /usr/local)
    die "the toolchain in $toolchain is not in a folder of its own, so it cannot be copied: use one of rustup's." ;;
esac
[ -x "$toolchain/bin/cargo" ] || die "there is no cargo in $toolchain/bin: use a complete toolchain, such as rustup's."

mkdir -p "$base"
exec 9>"$base/lock"
if ! flock -n 9; then
    say "waiting for another run to end"
    flock 9
    leave_if_ready "$sysroot" # the other run may have made it
fi
rm -rf "$base"/tmp.*
tmp=$(mktemp -d "$base/tmp.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# --- 1. The copy of the toolchain.
if [ ! -d "$sysroot" ]; then
    say "copying the toolchain of rustc $release"
    mkdir "$tmp/sysroot"
    if ! cp -al "$toolchain/bin" "$toolchain/lib" "$tmp/sysroot/" 2>/dev/null; then
        say "hard links are not possible here: making a real copy"
        rm -rf "$tmp/sysroot" && mkdir "$tmp/sysroot"
        cp -a "$toolchain/bin" "$toolchain/lib" "$tmp/sysroot/"
    fi
    mv "$tmp/sysroot" "$sysroot"
fi

# --- 2. The library's source, with the crates it depends on.
# debian_get PACKAGE VERSION SUITES unpacks a Debian package into $tmp/deb, from
# the first of the suites that has it (an empty VERSION takes any), and sets
# $found to its full version; where no suite has it, $found stays empty.
# apt runs with folders of its own, so that the machine's stay as they are; the
# machine's other settings, such as a proxy, hold. The mirror is the machine's:
# each address it uses is tried, and Debian's keys tell which one is Debian's.
debian_get() {
    local package=$1 wanted=$2 suites=$3 mirrors mirror suite apt=$tmp/apt
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg
    found=""
    [ -r "$keys" ] || die "$keys is missing: install the package debian-archive-keyring."
    # shellcheck disable=SC2016 # apt, not the shell, fills in $(...)
    mirrors=$(apt-get indextargets --format '$(COMPONENT) $(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
        awk '$1 == "main" && $2 !~ /security/ && !seen[$3]++ { print $3 }') ||
        die "'apt-get indextargets' failed: mend this machine's apt first."
    [ -n "$mirrors" ] || die "apt has no Debian mirror: add one to /etc/apt/sources.list.d first."

    rm -rf "$apt"
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/none"
    : >"$apt/status"
    cat >"$apt/apt.conf" <<CONF
Dir::State "$apt";
Dir::State::Lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
Dir::Cache::archives "$apt/archives";
Dir::Etc::SourceList "$apt/debian.sources";
Dir::Etc::SourceParts "$apt/none";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "$apt/none";
Acquire::Languages "none";
APT::Sandbox::User "root"; // the user of apt's sandbox cannot write to these folders
// Clean-up hooks of the machine would work on the machine's own folders.
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
CONF
    for suite in $suites; do
        for mirror in $mirrors; do
            say "looking for $package${wanted:+ $wanted} in Debian's $suite"
            printf '%s\n' "Types: deb" "URIs: $mirror" "Suites: $suite" "Components: main" \
                "Targets: Packages" "Signed-By: $keys" >"$apt/debian.sources"
            apt-get -c "$apt/apt.conf" -qq update || continue
            # Lines are "rust-src | 1.95.0+dfsg1-1~bpo13+1 | ..."; the part up to the "+" must match.
            found=$(apt-cache -c "$apt/apt.conf" madison "$package" |
                awk -v w="$wanted" '{ v = $3; sub(/[-+~].*/, "", v) } !n && (w == "" || v == w) { print $3; n = 1 }')
            [ -z "$found" ] || break 2
        done
    done
    [ -n "$found" ] || return 0
    say "downloading $package $found"
    (cd "$apt" && apt-get -c apt.conf -qq download "$package=$found") ||
        die "the download of $package $found failed (see above): try again later."
    dpkg-deb -x "$apt"/*.deb "$tmp/deb"
}

src=$sysroot/lib/rustlib/src/rust
if [ ! -d "$src/library/vendor" ]; then
    suites=${CROSS_STD_SUITES:-trixie-backports sid}
    debian_get rust-src "$release" "$suites"
    [ -n "$found" ] ||
        die "none of Debian's suites ($suites) has rust-src $release." \
            "Use a rustc of a release they do have, or name other suites in CROSS_STD_SUITES," \
            "or use 'rustup target add $target'."
    [ -d "$tmp/deb/usr/src/rustc-$release/library/vendor" ] ||
        die "the package rust-src no longer has usr/src/rustc-$release/library/vendor: this script must follow."
    mkdir -p "$src" # the compiler's source, in the same package, is not needed
    rm -rf "$src/library"
    mv "$tmp/deb/usr/src/rustc-$release/library" "$src/library"
fi

# For the windows-gnu targets rustc calls mingw's dlltool. Where it is not
# installed, the one of this Debian's own suite is borrowed for the build.
case $target in
    x86_64-*-windows-gnu) cpu=x86_64 ;;
    i686-*-windows-gnu) cpu=i686 ;;
    *) cpu="" ;;
esac
if [ -n "$cpu" ] && ! command -v "$cpu-w64-mingw32-dlltool" >/dev/null; then
    package=binutils-mingw-w64-${cpu/_/-}
    # shellcheck source=/dev/null
    debian_get "$package" "" "$(. /etc/os-release && echo "${VERSION_CODENAME:-sid}")"
    [ -n "$found" ] ||
        die "rustc needs $cpu-w64-mingw32-dlltool: install $package."
    PATH=$tmp/deb/usr/bin:$PATH
    "$cpu-w64-mingw32-dlltool" --version >/dev/null ||
        die "the dlltool of $package does not run from a folder: install that package."
fi

# --- 3. The target's library, made by building an empty crate.
# -Z options are for nightly only; RUSTC_BOOTSTRAP allows them here. The flags
# and wrappers of the caller's environment are for the caller's crate.
say "building the standard library for $target (a minute or two)"
mkdir -p "$tmp/empty/src" "$tmp/$target/lib"
: >"$tmp/empty/src/lib.rs"
printf '%s\n' '[package]' 'name = "empty"' 'edition = "2021"' '[workspace]' >"$tmp/empty/Cargo.toml"
(
    cd "$tmp/empty" || exit
    unset CARGO_ENCODED_RUSTFLAGS RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER CARGO_BUILD_TARGET
    # A release of the caller's crate is optimized together with the library, which for that must hold its bitcode.
    export RUSTC_BOOTSTRAP=1 RUSTC=$sysroot/bin/rustc RUSTFLAGS=-Cembed-bitcode=yes
    "$sysroot/bin/cargo" build --quiet --release --offline --target "$target" --target-dir "$tmp/build" \
        --config 'source.crates-io.replace-with="std-vendor"' \
        --config "source.std-vendor.directory='$src/library/vendor'" \
        -Zbuild-std=std,panic_unwind,panic_abort,proc_macro,test
) || die "the standard library for $target did not build (see above)." \
    "A target without std, or one that needs a C compiler, cannot be made this way."
rm -f "$tmp/build/$target/release/deps"/libempty-*
cp "$tmp/build/$target/release/deps"/*.rlib "$tmp/$target/lib/"
rm -rf "$sysroot/lib/rustlib/$target"
mv "$tmp/$target" "$sysroot/lib/rustlib/$target"
say "done"
leave_if_ready "$sysroot"
die "the build for $target made no libstd: that target may have none."
