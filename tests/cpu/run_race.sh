#!/usr/bin/env bash
# usage: run_race.sh PROBE PROGRAM
# Runs PROGRAM, built with ThreadSanitizer. First PROBE, which has a race, must be caught: that shows that the sanitizer
# runs here, as it is or with a fixed layout of addresses (setarch -R). Otherwise says so and exits with 77.
set -u
probe=$1 program=$2
export TSAN_OPTIONS="exitcode=66 halt_on_error=1"
for prefix in "" "setarch -R"; do
  output=$($prefix "$probe" 2>&1)
  if [[ $? == 66 && $output == *"data race"* ]]; then
    exec $prefix "$program"
  fi
done
echo "skipped: ThreadSanitizer does not run here: $output"
exit 77
