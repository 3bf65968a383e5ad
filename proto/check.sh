#!/bin/sh
# Fails when generated code is stale or a .proto breaks the lint rules.
exec "$(dirname "$0")/generate.sh" --check
