#!/bin/sh
# The five methods that atoll grew from, each in its own scenario on a generated graph, beside the baselines that it is compared with.
#
#   sh examples/demo.sh [FOLDER]     about a minute on two cores; runs that are in FOLDER already are not run again
set -e
out=${1:-runs/demo}

compare() {  # TITLE NAME ALGORITHMS OPTIONS...
    printf '\n%s\n\n' "$1"
    name=$2 algorithms=$3
    shift 3
    atoll compare "$algorithms" --dataset csbm --seeds 3 --jobs 2 --quiet --out "$out/$name" "$@"
}

compare "Disjoint subgraphs: FedSpray" horizontal local,fedavg,fedspray --set nodes=1000 --rounds 40
compare "Subgraphs that share nodes: FedGL" overlapping local,fedavg,fedgl --set nodes=1000 --rounds 40
compare "The same nodes, other columns and edges: GLASU" vertical standalone,glasu,centralized --set nodes=600 --rounds 100
compare "One node per user, who keeps the features: GFL-APPNP" users gfl_appnp,fedmlp --against fedmlp --rounds 60
compare "One node per user, who keeps its own layer: nFedGNN" layers cnfgnn,nfedgnn --set nodes=1000 --rounds 100

atoll report "$out"/horizontal --html "$out/report.html"
