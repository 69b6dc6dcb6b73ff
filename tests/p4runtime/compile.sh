#!/bin/sh
# Recompile this folder's programs: P4C=/path/to/p4c-bm2-ss tests/p4runtime/compile.sh
set -eu
cd "$(dirname "$0")"
for program in *.p4; do
    "${P4C:-p4c-bm2-ss}" --std p4-16 --p4runtime-files "${program%.p4}.p4info.txtpb" -o "${program%.p4}.json" "$program"
done
