#!/bin/sh
# Compiles the test programs again after a change: P4C=/path/to/p4c-bm2-ss tests/softswitch/programs/compile.sh
set -eu
cd "$(dirname "$0")"
for source in *.p4; do
    "${P4C:-p4c-bm2-ss}" --std p4-16 -o "${source%.p4}.json" "$source"
done
