#!/bin/sh
# Writes the Go beside every .proto, with the generators that proto/tools/go.mod
# pins. The first run builds buf, which takes minutes.
#   generate.sh          regenerate in place
#   generate.sh --check  lint, and fail when the checked-in code is stale
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=${BATON_PROTO_BIN:-${XDG_CACHE_HOME:-$HOME/.cache}/baton-proto/$(cksum <"$here/tools/go.sum" | cut -d' ' -f1)}
mkdir -p "$bin"
for tool in google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc github.com/bufbuild/buf/cmd/buf; do
	test -x "$bin/$(basename "$tool")" || (cd "$here/tools" && GOBIN="$bin" go install "$tool")
done
PATH="$bin:$PATH"
export PATH
cd "$here"
buf lint
if [ "${1-}" != --check ]; then
	buf generate
	exit
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
buf generate -o "$out"
stale=0
for new in $(cd "$out" && find . -name '*.pb.go'); do
	cmp -s "$out/$new" "$new" || { echo "proto/${new#./}: stale: run proto/generate.sh" >&2; stale=1; }
done
for old in $(find . -name '*.pb.go'); do
	test -f "$out/$old" || { echo "proto/${old#./}: its .proto is gone: remove it" >&2; stale=1; }
done
exit $stale
