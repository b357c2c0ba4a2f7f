#!/usr/bin/env bash
# The settings of job scripts: the files of a site and of a user, and the environment, each over the one before; a file that others may
# write is not read, and `lockstep doctor` says the same. LOCKSTEP may be a command with arguments.
# shellcheck source=tests/slurm/jobs.sh
source "$(dirname "$0")/jobs.sh"

# settings: the launcher, its flags, the folder of logs and the modules that job scripts see.
# shellcheck disable=SC2016  # for the other bash
settings() {
  bash -c 'unset LOCKSTEP_LOGS; source "$1/slurm.sh" && echo "$launcher/$launcher_flags/$log_directory/${modules:-none}"' settings "$templates" 2>site.err
}
equal() { [ "$1" = "$2" ] || fail "$3: $2, expected $1; $(cat site.err)"; }
unset LOCKSTEP_SITE LOCKSTEP_LOGS LOCKSTEP_BIND
umask 022
chmod go-w .
mkdir -p etc home/.config/lockstep
echo "LOCKSTEP_LAUNCHER=mpirun LOCKSTEP_LAUNCHER_FLAGS=--site LOCKSTEP_LOGS=site modules=gcc" >etc/site.sh
echo "LOCKSTEP_LAUNCHER_FLAGS=--user LOCKSTEP_LOGS=user" >home/.config/lockstep/site.sh
both=$PWD/etc/site.sh:$PWD/home/.config/lockstep/site.sh

equal auto//logs/none "$(LOCKSTEP_SITE='' settings)" "no file"
[ -e /etc/lockstep/site.sh ] || equal auto/--user/user/none "$(HOME=$PWD/home settings)" "the user's file"
equal mpirun/--user/user/gcc "$(LOCKSTEP_SITE=$both settings)" "both files"
equal mpirun/--environment/user/gcc "$(LOCKSTEP_SITE=$both LOCKSTEP_LAUNCHER_FLAGS=--environment settings)" "files and environment"
LOCKSTEP_SITE=$both "$LOCKSTEP" doctor >doctor.out 2>&1
grep -q "^ok  *job settings .*job scripts read $PWD/etc/site.sh $PWD/home/.config/lockstep/site.sh" doctor.out || fail "doctor: $(cat doctor.out)"

# unread PATH: what can be written by others.
unread() {
  chmod g+w "$1"
  equal auto/--user/user/none "$(LOCKSTEP_SITE=$both settings)" "$1 can be written by others"
  grep -q "job: warning: $PWD/etc/site.sh is not read" <(LOCKSTEP_SITE=$both settings >settings.out; cat settings.out site.err) || fail "no warning: $(cat site.err)"
  LOCKSTEP_SITE=$both "$LOCKSTEP" doctor >doctor.out 2>&1
  grep -q "^note  *job settings .*read $PWD/home/.config/lockstep/site.sh, but not $PWD/etc/site.sh" doctor.out || fail "doctor: $(cat doctor.out)"
  chmod g-w "$1"
}
unread etc/site.sh
unread etc
if [ "$(id -u)" -eq 0 ] && [ "$(id -gn daemon)" = daemon ]; then  # a user whose private group has its name
  install -d -o daemon -g daemon -m 0775 private
  install -o daemon -g daemon -m 0664 etc/site.sh private/site.sh
  chmod a+rx . ..
  as_daemon() { setpriv --reuid=daemon --regid="$1" --clear-groups env LOCKSTEP_SITE="$PWD/private/site.sh" bash -c "source '$templates/launch.sh'; echo \"\${site_files[*]}\"" 2>&1; }
  equal "$PWD/private/site.sh" "$(as_daemon daemon)" "a private group may write"
  as_daemon users | grep 'private/site.sh is not read' >/dev/null || fail "the group of users may write: $(as_daemon users)"
fi

# A program that is there only in a container, which a command opens.
digits digits.h5
small_mlp 'steps = 20' 'global_batch = 16' 'shards = 2' >run.ini
container image
LOCKSTEP="$PWD/contain exec $PWD/image inner" bash "$templates/train-mpirun.sh" 2 run.ini --run contained >contained.log 2>&1 ||
  fail "in a container: $(cat contained.log)"
same_as_undisturbed contained
mkdir 'two words'
ln -s "$LOCKSTEP" 'two words/lockstep'
LOCKSTEP="$PWD/two words/lockstep" bash "$templates/train-mpirun.sh" 1 run.ini --run blank >blank.log 2>&1 || fail "a path with a blank: $(cat blank.log)"
LOCKSTEP="no-such exec x.sif lockstep" bash "$templates/train-mpirun.sh" 1 run.ini --run none >none.log 2>&1
[ $? -eq 2 ] || fail "no such command: $(cat none.log)"
grep -q 'job: no program no-such exec x.sif lockstep' none.log || fail "no such command: $(cat none.log)"
finish
