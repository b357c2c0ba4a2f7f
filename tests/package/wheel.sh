#!/usr/bin/env bash
# wheel.sh SCRATCH COMMAND...: COMMAND makes a wheel in SCRATCH. pip installs it into a new virtual environment, without a network. There
# it trains to the same bits as $LOCKSTEP, the program that was built here, and hides no mpirun. pip removes all of it again.
# Exit code 77: python3 makes no environments here.
# shellcheck source=tests/package/scratch.sh
source "$(dirname "$0")/scratch.sh"
scratch=$1
shift

enter_empty "$scratch"
"$@"
wheel=$(echo lockstep-*.whl)
/usr/bin/python3 -m venv "an environment" || { echo "SKIPPED: the wheel was made; python3-venv is not here"; exit 77; }
environment=$scratch/"an environment"
find "$environment" -type f ! -name '*.pyc' | sort >before
"$environment/bin/pip" install --quiet --no-index --no-deps --disable-pip-version-check "$wheel" || failed "pip does not take $wheel"

# Its name says which glibc it needs: that of the newest function that it calls.
newest=$(grep -rhoaE 'GLIBC_2\.[0-9]+' "$environment/opt/lockstep/lib" "$environment/opt/lockstep/libexec" | sort -Vu | tail -n 1)
newest=${newest#GLIBC_}
[[ $wheel == lockstep-*-py3-none-manylinux_${newest/./_}_$(uname -m).whl ]] || failed "$wheel is not named after glibc $newest and $(uname -m)"
# The licence of every library is there.
while read -r library file; do
  package=$( (dpkg-query -S "$file" "${file#/usr}" || true) 2>/dev/null | sed -n '1s/[:,].*//p')
  [ -z "$package" ] || [ -s "$environment/opt/lockstep/licenses/$package" ] || failed "no licence of $library, which is of the package $package"
done < <(grep '^lib/' "$environment/opt/lockstep/CONTENTS")

# As whoever has activated the environment; what this script was told of the build is not known there.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 MPIRUN_FLAGS="--bind-to none"
training=(--set train.steps=20 --set checkpoint.every=20)
PATH=$environment/bin:$PATH bash -euo pipefail -c '
  [ "$(command -v mpirun)" != "$0/bin/mpirun" ]
  lockstep doctor
  jobs=$(lockstep-jobs)
  lockstep prepare csv "$jobs/../share/data/digits.csv.gz" --shape 1,8,8 --out digits.h5
  lockstep-mpirun -n 2 --bind-to none lockstep train "$jobs/digits.ini" --run by-mpirun --set data.train=digits.h5 "$@"
  lockstep-train 2 "$jobs/digits.ini" --run by-script --set data.train=digits.h5 "$@"' "$environment" "${training[@]}" >log 2>&1 ||
  failed "in the environment: $(cat log)"
# shellcheck disable=SC2086  # several words
$LOCKSTEP_MPIRUN -n 2 "$LOCKSTEP" train "$LOCKSTEP_SOURCE_DIR/jobs/digits.ini" --set data.train=digits.h5 "${training[@]}" \
  --run here >here.log || failed "training here: $(tail -n 3 here.log)"
for run in by-mpirun by-script; do "$LOCKSTEP" diff $run/checkpoints/latest here/checkpoints/latest; done

# A folder that is no environment serves, too.
"$environment/bin/pip" install --quiet --no-index --no-deps --disable-pip-version-check --target folder "$wheel"
folder/bin/lockstep-mpirun -n 1 lockstep doctor >log || failed "pip install --target: $(cat log)"

"$environment/bin/pip" uninstall --quiet --yes --disable-pip-version-check lockstep
find "$environment" -type f ! -name '*.pyc' | sort | diff before - >left || failed "pip leaves or takes what is not the wheel's: $(cat left)"
cd /
rm -rf "$scratch"
