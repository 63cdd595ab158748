#!/usr/bin/env bash
# A study, begun or gone on with, and then its report: what a job runs on the head of its cluster.
#
#   cluster/study.sh NAME [options of tune/search.py]
#
# It can be stopped at any moment and be run again, on another machine too where CPAAN_STORAGE is
# set. The options are those of the beginning: a study that goes on has them in its config.json.
# CPAAN_FOLDER is the folder that has results/ (default: the current one).
set -euo pipefail

name=${1:?usage: cluster/study.sh NAME [options of tune/search.py]}
shift
project=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd -- "${CPAAN_FOLDER:-.}"
# Without an address, the commands would start a Ray of their own beside that of the cluster.
export RAY_ADDRESS=${RAY_ADDRESS:-auto}
search=(python "$project/tune/search.py")

status=0
# A dry run fetches the study from the storage to a head that does not have it. If that fails for
# another reason than that there is none, --study is refused below, and nothing is lost.
if "${search[@]}" --resume "$name" --dry-run >/dev/null 2>&1; then
  "${search[@]}" --resume "$name" || status=$?
else
  "${search[@]}" --study "$name" "$@" || status=$?
fi

# Status 1 is also that of a study whose best trial is known and some other trial failed. Its log
# and trials.parquet say so; a job that failed for it would be tried again, and fail again.
if ((status > 1)) || [[ ! -e results/$name/best.json ]]; then
  exit "$status"
fi
# A report reads the test phase: once is enough for what has not changed since.
if [[ results/$name/report/report.json -nt results/$name/best.json ]]; then
  exit 0
fi
exec python "$project/tune/report.py" "$name"
