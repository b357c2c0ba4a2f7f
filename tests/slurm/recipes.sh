#!/usr/bin/env bash
# The recipes of docs/cluster.md and docs/my-cluster-gpus.md that this machine can run: containers, data on a disk of each node, sites
# without requeue, limits of a few minutes.
# shellcheck source=tests/slurm/jobs.sh
source "$(dirname "$0")/jobs.sh"
start_cluster 4
endless_run
container image
pmi=$([ "$mpi" = hydra ] && echo pmi2 || echo pmix)

# A site where nobody may requeue: a chain of the same job. The second begins when the first ends, whatever it ends with.
chained=(-w "n[1-2]" --no-requeue)
submit chain-1 "${chained[@]}" -- train.sbatch run.ini --run chain
first=$job
submit chain-2 "${chained[@]}" --dependency=afterany:"$first" -- train.sbatch run.ini --run chain
second=$job

# The program is there in the container alone, which a command opens (Apptainer), or srun on each node (pyxis).
LOCKSTEP="$PWD/contain exec $PWD/image inner" LOCKSTEP_SRUN_MPI=$pmi submit apptainer -w "n[3-4]" -- train.sbatch run.ini --run apptainer --set train.steps=40
apptainer=$job
mkdir pyxis
cat >pyxis/srun <<PYXIS
#!/usr/bin/env bash
# srun with pyxis: an option names the image, whose commands are run.
arguments=() image=
for argument; do
  case \$argument in --container-image=*) image=\${argument#*=} ;; *) arguments+=("\$argument") ;; esac
done
PATH=\$image/bin:\$PATH exec "$(command -v srun)" "\${arguments[@]}"
PYXIS
chmod +x pyxis/srun
PATH=$PWD/pyxis:$PATH LOCKSTEP=inner LOCKSTEP_SRUN_MPI=$pmi LOCKSTEP_LAUNCHER_FLAGS=--container-image=$PWD/image \
  submit pyxis -w "n[3-4]" -- train.sbatch run.ini --run pyxis --set train.steps=40
pyxis=$job

# A command of the site copies the data on each node before ranks start. One that fails, here of the environment, ends the start.
mkdir disk
cat >site.sh <<SITE
LOCKSTEP_BEFORE_RANKS='cp "$PWD/digits.h5" "$PWD/disk/\$SLURMD_NODENAME.h5" && ln -sf "\$SLURMD_NODENAME.h5" "$PWD/disk/digits.h5"'
SITE
chmod go-w . site.sh
export LOCKSTEP_SITE=$PWD/site.sh
submit staged -w "n[3-4]" -- train.sbatch run.ini --run staged --set train.steps=40 --set data.train=disk/digits.h5
staged=$job
# shellcheck disable=SC2016  # for the nodes
LOCKSTEP_BEFORE_RANKS='[ "$SLURM_NODEID" = 0 ]' LOCKSTEP_MAX_STALLED=1 submit unstaged -w "n[3-4]" -- train.sbatch run.ini --run unstaged
unstaged=$job
export LOCKSTEP_SITE=

# Limits of a few minutes, each with a signal that leaves time to train.
limited=()
for limit in 1@10 2@30 5@60; do
  SBATCH_SIGNAL=B:USR2@${limit#*@} submit "limit-${limit%@*}" -w n3 --time="${limit%@*}" -- train.sbatch run.ini \
    --run "limit-${limit%@*}" --set train.steps=40
  limited+=("$job")
done

until_trains chain-1 0
scancel --signal=USR2 --batch "$first"
ends chain-1 "$first" FAILED 75 0
says chain-1 "job: stopped as asked; Slurm does not requeue it: sbatch it again"
until_trains chain-2 1
touch chain/stop
ends chain-2 "$second" FAILED 76 0
[ "$(sed -nE 's/.*preempted after step ([0-9]+);.*/\1/p' chain-1.log)" = "$(sed -nE 's/.*going on after step ([0-9]+) .*/\1/p' chain-2.log)" ] ||
  fail "the chain loses steps: $(tail -n 3 chain-1.log) $(cat chain-2.log)"
same_as_undisturbed chain

ends apptainer "$apptainer" COMPLETED 0 0
says apptainer "2 ranks on n.* by srun --mpi=$pmi, lockstep [0-9]"
same_as_undisturbed apptainer
ends pyxis "$pyxis" COMPLETED 0 0
says pyxis "2 ranks on n.* by srun --mpi=$pmi, lockstep in a container"
expect_same undisturbed/checkpoints/latest pyxis/checkpoints/latest

ends staged "$staged" COMPLETED 0 0
says staged "job: settings of $PWD/site.sh"
{ cmp digits.h5 disk/n3.h5 && cmp digits.h5 disk/n4.h5; } || fail "staged: $(ls -l disk)"
ends unstaged "$unstaged" FAILED 5 0
says unstaged 'job: LOCKSTEP_BEFORE_RANKS ended with 1 on a node: '
[ ! -e unstaged/checkpoints ] || fail "unstaged: trained"

for limit in 1 2 5; do
  ends "limit-$limit" "${limited[0]}" COMPLETED 0 0
  limited=("${limited[@]:1}")
  silent_about "limit-$limit" "waits up to"
done
finish
