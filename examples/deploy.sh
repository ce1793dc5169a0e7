#!/bin/sh
# Three banks and a server as four processes on one machine: the tutorial of docs/deployment.md, word for word.
set -e
rm -rf demo
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

atoll partition --dataset csbm --partition random --parties 3 --out demo/data
atoll provision --parties bank-a,bank-b,bank-c --server localhost --out demo/kits

cat > demo/run.toml <<'TOML'
algorithm = "fedspray"

[run]
rounds = 30
TOML

atoll join demo/kits/bank-a --data demo/data/party-0 &
atoll join demo/kits/bank-b --data demo/data/party-1 &
atoll join demo/kits/bank-c --data demo/data/party-2 &
atoll serve demo/kits/server --config demo/run.toml --out demo/result
wait
ls demo/result demo/kits/bank-a/runs/*
