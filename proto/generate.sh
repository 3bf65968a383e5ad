#!/bin/sh
# Writes the Go beside every .proto, and what the engines' client in Python needs of them,
# with the generators that proto/tools/go.mod pins. The first run builds buf, which takes minutes.
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
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
schema=../sidecar/engine/python/baton/_schema.py
buf build --exclude-source-info --as-file-descriptor-set --path common/v1 --path engine/v1 -o "$out/set.binpb"
{
	printf '"""Written by proto/generate.sh: the descriptors of common/v1 and engine/v1."""\n\nDESCRIPTORS = """\n'
	base64 -w 120 "$out/set.binpb"
	printf '"""\n'
} >"$out/_schema.py"
if [ "${1-}" != --check ]; then
	cp "$out/_schema.py" "$schema"
	buf generate
	exit
fi
buf generate -o "$out"
stale=0
cmp -s "$out/_schema.py" "$schema" || { echo "proto/$schema: stale: run proto/generate.sh" >&2; stale=1; }
for new in $(cd "$out" && find . -name '*.pb.go'); do
	cmp -s "$out/$new" "$new" || { echo "proto/${new#./}: stale: run proto/generate.sh" >&2; stale=1; }
done
for old in $(find . -name '*.pb.go'); do
	test -f "$out/$old" || { echo "proto/${old#./}: its .proto is gone: remove it" >&2; stale=1; }
done
exit $stale
