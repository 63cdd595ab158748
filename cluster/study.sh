#!/usr/bin/env bash
# Start or resume a study and then report on it. Jobs run this on the head of their cluster.
#
#   cluster/study.sh NAME [options of tune/search.py]
#
# You can stop it at any time and run it again, also on another machine if CPAAN_STORAGE is set. The
# options apply to a new study; a resumed one reads them from its config.json. CPAAN_FOLDER is the
# folder of results/ (default: the current folder).
set -euo pipefail

name=${1:?usage: cluster/study.sh NAME [options of tune/search.py]}
shift
project=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd -- "${CPAAN_FOLDER:-.}"
# Without an address, the commands would start a second Ray beside the cluster's.
export RAY_ADDRESS=${RAY_ADDRESS:-auto}
search=(python "$project/tune/search.py")

status=0
# A dry run downloads the study from the storage to a new head. If it fails although the study exists,
# the command refuses --study below, so that nothing is overwritten.
if "${search[@]}" --resume "$name" --dry-run --json >/dev/null 2>&1; then
  "${search[@]}" --resume "$name" || status=$?
else
  "${search[@]}" --study "$name" "$@" || status=$?
fi

# The status is also 1 if there is a best trial but some other trial failed, as the log and
# trials.parquet show. Continue then, because a failed job would be retried and fail again.
if ((status > 1)) || [[ ! -e results/$name/best.json ]]; then
  exit "$status"
fi
# A report reads the test phase, so do not repeat it while the best trial is the same.
if [[ results/$name/report/report.json -nt results/$name/best.json ]]; then
  exit 0
fi
exec python "$project/tune/report.py" "$name"
