#!/bin/sh
# Fails when the generated Go is stale or a .proto breaks the lint rules.
exec "$(dirname "$0")/generate.sh" --check
