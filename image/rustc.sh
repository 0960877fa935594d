#!/bin/sh
# Runs the compiler for the kernel and the boot stub, so that the directories of the sources, of cargo and of
# the artifacts leave no trace in what it writes. cargo calls it (`rustc-wrapper` in .cargo/config.toml) with
# the compiler and its arguments.
#
# Two things depend on a directory: paths of source files, which rustc replaces itself, and the hash that tells
# crates apart in the names of symbols (`-C metadata`). cargo hashes the absolute path of a crate that lies
# outside of the workspace, and symbols are sorted by name. Here the hash is one of the arguments that identify
# a crate: its name, its path below the replaced directories, its kind and its features.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd -P)
here=$(pwd -P)
registries=${CARGO_HOME:-$HOME/.cargo}/registry/src

crate= path= traits= former=
for argument; do
    case $former in
    --crate-name) crate=$argument ;;
    --crate-type | --cfg) traits="$traits $argument" ;;
    esac
    case $argument in
    *.rs) path=$argument ;;
    esac
    former=$argument
done
# Without a source file, cargo asks for the compiler's version, or for what it knows.
if [ -z "$path" ]; then
    exec "$@"
fi
case $path in
"$registries"/*/*) path=${path#"$registries"/*/} ;;
/*) path=${path#"$root"/} ;;
*) path=${here#"$root"/}/$path ;;
esac
hash=$(printf '%s' "$crate $path$traits" | sha256sum | cut -c 1-16)

for argument; do
    shift
    case $argument in
    metadata=*) argument=metadata=$hash ;;
    esac
    set -- "$@" "$argument"
done
# A crate of a registry is compiled in its own directory, whose path has no symbolic links.
for registry in "$registries"/*; do
    set -- "$@" --remap-path-prefix "$registry=/registry"
    set -- "$@" --remap-path-prefix "$(cd "$registry" && pwd -P)=/registry"
done
if [ -n "${OUT_DIR:-}" ]; then
    set -- "$@" --remap-path-prefix "$OUT_DIR=/generated/$crate"
fi
exec "$@" --remap-path-prefix "$root=/ferrolite"
