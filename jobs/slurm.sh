# What the Slurm templates share (sourced): starts the ranks in an allocation, and requeues the job.
# shellcheck shell=bash
# shellcheck source=jobs/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

# choose_launcher: srun and the MPI must speak the same PMI, else every rank believes that it is the only one. mpirun needs none
# of it. A value set for srun's --mpi is taken as it is.
choose_launcher() {
  local wanted=$launcher offered flavour
  case $wanted in
    mpirun) need_mpirun && srun_mpi='' && return ;;
    auto | srun) ;;
    *)
      say "LOCKSTEP_LAUNCHER=$wanted: must be auto, srun or mpirun"
      exit 2
      ;;
  esac
  launcher=srun
  if [ -n "$srun_mpi" ] || { [ "$wanted" = srun ] && [[ $launcher_flags == *--mpi=* ]]; }; then return; fi
  offered=$(srun --mpi=list 2>&1)
  flavour=$(ompi_info --parsable 2>/dev/null | grep -E '^mca:pmix:|^ompi:version:full:([5-9]|[1-9][0-9])\.')
  if [ "$mpi" != hydra ] && [ -n "$flavour" ] && grep -qw pmix <<<"$offered"; then
    srun_mpi=pmix
  elif [ "$mpi" = hydra ] && grep -qw pmi2 <<<"$offered"; then
    srun_mpi=pmi2
  elif [ "$wanted" = srun ]; then
    say "LOCKSTEP_LAUNCHER=srun: no PMI is known that both srun and this MPI speak: LOCKSTEP_SRUN_MPI=TYPE (srun --mpi=list)," \
      "or LOCKSTEP_LAUNCHER=mpirun"
    exit 2
  else
    need_mpirun
    launcher=mpirun
  fi
}

# on_ranks WHERE COMMAND...: WHERE = nodes runs it on one rank of each node, with all output in the job's log; under srun a rank that
# fails does not end the others. WHERE = ranks runs it on all ranks, which end together; each node's output is in its own log,
# that of rank 0's node in the job's log as well.
lines=''
on_ranks() {
  local where=$1 flags=()
  shift
  read -r -a flags <<<"$launcher_flags"
  if [ "$launcher" = mpirun ]; then
    local ranks=$SLURM_NTASKS placed="--bind-to $bind"
    [ "$where" != nodes ] || ranks=$SLURM_JOB_NUM_NODES placed=$(placement nodes)
    [ "$where-$bind" != ranks-cores ] || placed=$(placement cores "${SLURM_CPUS_PER_TASK:-1}")
    # shellcheck disable=SC2086  # several flags
    run_in_background mpirun "${flags[@]}" -n "$ranks" $placed "$@"
    return
  fi
  flags+=(--cpu-bind="$bind")
  [ -z "$srun_mpi" ] || flags+=(--mpi="$srun_mpi")
  local messages=$log-srun.log own holder follower
  if [ "$where" = nodes ]; then
    by_srun --kill-on-bad-exit=0 --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
      "${flags[@]}" "$@"
    return
  fi
  # %n: the node's number in this job, %N: its name. Rank 0 is on the node of this script.
  own=$log-0-$(hostname -s).log
  touch "$own"
  local -A size=()  # of each node's log before this start
  local file
  for file in "$log"-[0-9]*-*.log; do size[$file]=$(wc -c <"$file"); done
  sleep infinity &  # when this process ends, the follower reads once more and ends
  holder=$!
  tail -n 0 -s 0.5 -F "$own" --pid="$holder" 2>/dev/null &
  follower=$!
  by_srun --kill-on-bad-exit=1 --unbuffered --open-mode=append --output="$log-%n-%N.log" "${flags[@]}" "$@"
  kill "$holder" 2>/dev/null  # the job's end may have ended it
  wait "$holder" "$follower" 2>/dev/null
  [ -z "$lines" ] || printf '%s\n' "$lines"
  # The first task that ends makes srun kill the others, whose codes are then its signal's. The first task's code counts.
  if [ "$code" -ge 128 ]; then
    local first
    first=$(sed -nE 's/.*[Ee]xited with exit code ([0-9]+).*/\1/p' <<<"$lines" | head -n 1)
    [ -z "$first" ] || [ "$first" -ge 128 ] || code=$first
  fi
  reasons_elsewhere "$own"
}

# reasons_elsewhere OWN: after a failure, prints the reasons that only the logs of other nodes have: the rank that printed the reason may
# be there. `size`: how long each log was before this start.
reasons_elsewhere() {
  local file said known
  case $code in 0 | 75 | 76) return ;; esac
  known=$(tail -c "+$((${size[$1]:-0} + 1))" "$1" | grep '^lockstep: ')
  for file in "$log"-[0-9]*-*.log; do
    [ "$file" != "$1" ] || continue
    said=$(tail -c "+$((${size[$file]:-0} + 1))" "$file" | grep '^lockstep: ' | grep -vxF -e "$known" | awk '!seen[$0]++')
    [ -n "$said" ] || continue
    say "from $file:"
    printf '%s\n' "$said"
    known+=$'\n'$said
  done
  reasons=$(keep_last <<<"$known")
}

# by_srun ARGUMENTS...: srun's messages go to the file $messages, those of this call to $lines. A step that a node could not
# start is tried again under the next number: a node that was lost may still hold files of a step of the same number.
srun_refuses=''
by_srun() {
  local before attempt
  for attempt in 1 2 3; do
    touch "$messages"
    before=$(wc -l <"$messages")
    run_in_background srun "$@" 2>>"$messages"
    lines=$(tail -n "+$((before + 1))" "$messages")
    if [ "$code" -eq 0 ] || [ -n "$stop_asked" ] || [ "$attempt" -eq 3 ]; then return; fi
    # The flags are wrong, not a node.
    if grep -qE '^Try "srun --help"|^srun: error: (unrecognized |Invalid (MPI type|.* specification))' <<<"$lines"; then
      code=2 srun_refuses=yes
      return
    fi
    grep -qE 'launch failed|aborted before step completely launched' <<<"$lines" || return 0
    say "srun could not start every rank; trying again"
    sleep 2
  done
}

# on_every_node SUBJECT: all nodes found a problem with it, so the run is wrong, not a node.
on_every_node() {
  [ "$(grep -cE "^problem +[^ ]+: $1: " "$report")" -ge "$SLURM_JOB_NUM_NODES" ]
}

# healthy: whether every node passes `lockstep doctor`; if not, `code` is the job's exit code.
healthy() {
  [ "$health_check_s" -ne 0 ] || return 0
  if ! have_lockstep; then
    say "nodes are not checked: no program $lockstep (set LOCKSTEP to one that has \`doctor\`)"
    return 0
  fi
  local report=$log-doctor.log place=(--run "$run_directory")
  [ -n "$run_directory" ] || place=()
  on_ranks nodes timeout "$health_check_s" "${program[@]}" doctor --node "${place[@]}" >"$report" 2>&1
  printf '%s\n' "$lines" >>"$report"
  [ "$code" -ne 0 ] || { grep '^note ' "$report"; return 0; }
  [ -z "$stop_asked" ] || { code=75; return 1; }  # before the first step: nothing to save
  if [ -n "$srun_refuses" ]; then
    say "srun refuses its arguments (LOCKSTEP_LAUNCHER_FLAGS, LOCKSTEP_SRUN_MPI, LOCKSTEP_BIND):"
  elif on_every_node 'run directory' || on_every_node 'disk speed'; then
    say "no node can write the run there:"
    code=2
  else
    say "a node is not fit (lockstep doctor: exit $code); if it happens again, sbatch --exclude=NODE:"
    code=5
  fi
  cat "$report"
  return 1
}

# job_state ID: "RUNNING None 0": state, reason and restarts, which count a requeue at once.
job_state() {
  scontrol show job -o "$1" 2>/dev/null | sed -nE 's/.* JobState=([A-Z_]+) Reason=([A-Za-z_]+) .* Restarts=([0-9]+) .*/\1 \2 \3/p'
}

# seconds_of TIME: of Slurm's "1-02:03:04", "02:03:04" or "03:04"; empty for UNLIMITED and what is no time.
seconds_of() {
  [[ $1 =~ ^(([0-9]+)-)?(([0-9]+):)?([0-9]+):([0-9]+)$ ]] || return 0
  echo $((((10#0${BASH_REMATCH[2]} * 24 + 10#0${BASH_REMATCH[4]}) * 60 + 10#${BASH_REMATCH[5]}) * 60 + 10#${BASH_REMATCH[6]}))
}

# signal_in TEXT: the last --signal=[R][B:]SIGNAL[@SECONDS] in it; empty if it has none.
signal_in() { grep -oE -e '--signal[= ][^ ]+' <<<"$1" | tail -n 1 | cut -c 10-; }

# submit_line: how the job was submitted; empty where Slurm does not keep that (no accounting).
submit_line() {
  local line
  line=$(sed -nE 's/.* SubmitLine=(.*)/\1/p' <<<"$job_facts")
  [ -n "$line" ] || line=$(timeout 10 sacct -X -n -P -j "$SLURM_JOB_ID" -o SubmitLine 2>/dev/null | head -n 1)
  echo "$line"
}

# leaves_time: false, and `code` is 2, if the signal of --signal comes as soon as the job begins, so that it would train for seconds and
# requeue itself again and again. Slurm does not tell a job its --signal. That of the command line (found in the accounting alone) goes
# before SBATCH_SIGNAL and before the script's own. Without accounting the signal itself decides: Slurm looks every 30 s who is due.
leaves_time() {
  local job_facts limit_s line signal lead_s
  job_facts=$(scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null)
  limit_s=$(seconds_of "$(sed -nE 's/.* TimeLimit=([^ ]+) .*/\1/p' <<<"$job_facts")")
  [ -n "$limit_s" ] || return 0
  line=$(submit_line)
  signal=$(signal_in "${line%%.sbatch*}")
  : "${signal:=${SBATCH_SIGNAL:-$(signal_in "$(grep '^#SBATCH' "$0" 2>/dev/null)")}}"
  lead_s=${signal##*@}
  [[ $signal == *@* ]] || lead_s=60
  if [ -z "$signal" ] || ! [[ $lead_s =~ ^[0-9]+$ ]] || [ "$limit_s" -gt "$lead_s" ]; then return 0; fi
  if [ -z "$line" ]; then
    say "the time limit is $limit_s s, and --signal=$signal comes $lead_s s before it, unless sbatch was given another one:" \
      "waits up to $first_signal_s s for it"
    sleep "$first_signal_s" &
    wait $!
    kill $! 2>/dev/null
    [ "$stop_asked" = USR2 ] && scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null | grep -q ' PreemptTime=None' || return 0
  fi
  code=2
  say "the time limit of $limit_s s is not above the $lead_s s that --signal=$signal comes before it, so nothing can be trained:" \
    "give a longer --time, or --signal=${signal%@*}@$((limit_s / 4 < 30 ? limit_s / 4 : 30))"
  return 1
}
first_signal_s=35

# RUN/queued says to `lockstep status` that the run waits in the queue.
note_queued() {
  [ ! -d "$run_directory" ] || { printf 'job=%s\nexit_code=%s\n' "$1" "$code" >"$run_directory/queued"; } 2>/dev/null || true
}
forget_queued() { [ -z "$run_directory" ] || rm -f "$run_directory/queued"; }

# requeue WHY: puts the job back into the queue, or says why not; ends the script with `code`.
requeue() {
  local id=$SLURM_JOB_ID now without state resumes=
  now=$(newest_step "$run_directory")
  [ -z "$run_directory" ] || resumes=", to resume $(place_of "$now")"
  without=$(stalled "$log.starts" "$now")
  # An array is requeued task by task.
  [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  if [ -n "$ended_by_slurm" ] && state=$(job_state "$id") && [[ $state != RUNNING* && $state != *TimeLimit* ]]; then
    if [[ $state == CANCELLED* || $state == "COMPLETING None $restarts" ]]; then
      say "$1; cancelled: not requeued"
    else
      say "$1; Slurm ends this job (${state% *}) and decides whether it returns"
    fi
  elif [ "$restarts" -ge "$max_restarts" ]; then
    say "$1; not requeued: $restarts restarts, the limit is $max_restarts"
  elif [ "$without" -ge "$max_stalled" ]; then
    say "$1; not requeued: $without starts in a row without a newer checkpoint"
  elif note_queued "$id" && scontrol requeue "$id"; then  # Slurm may end this script before scontrol returns
    say "$1; requeued as $id$resumes"
    trap 'exit "$code"' TERM
    sleep 300 &  # Slurm ends this script now
    wait $!
  else
    # The end that scontrol asked for may end scontrol itself.
    [ $? -ge 128 ] || forget_queued
    say "$1; Slurm does not requeue it: sbatch it again"
  fi
  exit "$code"
}

# prepared: whether the site's command ended with 0 on one rank of every node; if not, `code` is the job's exit code.
prepared() {
  [ -n "$before_ranks" ] || return 0
  on_ranks nodes bash -c "$before_ranks"
  [ "$code" -ne 0 ] || return 0
  [ -z "$stop_asked" ] || { code=75; return 1; }  # before the first step: nothing to save
  [ -z "$lines" ] || printf '%s\n' "$lines"
  say "LOCKSTEP_BEFORE_RANKS ended with $code on a node: $before_ranks"
  code=5
  return 1
}

# run_lockstep VERB ARGUMENTS...: a job that runs a verb of `lockstep`, or of a program made with the same verbs.
run_lockstep() {
  run_directory=
  [ "$1" != train ] || run_directory=$(run_directory_of "${@:2}")
  find_lockstep
  version="lockstep in a container"
  in_container || version=$("${program[@]}" --version)
  run_job "${program[@]}" "$@"
}

# run_job COMMAND...: one start of a job, from the node check to its end in the queue. Ends the script. `run_directory`: where COMMAND
# keeps its checkpoints, '' if it keeps none or nobody says. Then a start that ends with 75 counts as one that saved something.
run_job() {
  local name=${SLURM_JOB_NAME:-lockstep} id=$SLURM_JOB_ID
  restarts=${SLURM_RESTART_COUNT:-0}
  [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  mkdir -p "$log_directory" || exit 2
  log=$log_directory/${name//\//_}-$id
  export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}  # since Slurm 22.05 srun does not take it from sbatch
  ended_by_slurm=
  trap 'signals=$((signals + 1)); pass_on USR2' USR2
  trap 'signals=$((signals + 1)); ended_by_slurm=yes; pass_on TERM' TERM
  trap 'signals=$((signals + 1)); ask_for_report' USR1
  choose_launcher
  say "$id, restart $restarts, $SLURM_NTASKS rank$([ "$SLURM_NTASKS" -eq 1 ] || echo s) on $SLURM_JOB_NODELIST by $launcher${srun_mpi:+ --mpi=$srun_mpi}," \
    "${version:-$(basename "$1")}"
  [ ${#site_files[@]} -eq 0 ] || say "settings of ${site_files[*]}"
  [ -z "$run_directory" ] || say "run $run_directory, $(place_of "$(newest_step "$run_directory")")"
  newest_step "$run_directory" >>"$log.starts"

  ! leaves_time || ! healthy || ! prepared || { reports=yes && forget_queued && on_ranks ranks "$@"; }
  forget_queued
  case $(verdict "$code") in
    finished) say "done" ;;
    stop)
      say "exit $code: not requeued${reasons:+:}"
      say_reasons
      ;;
    again)
      [ -n "$run_directory" ] || : >"$log.starts"
      requeue "stopped as asked"
      ;;
    failed)
      record_end "$run_directory"
      say_reasons
      requeue "failed with exit $code"
      ;;
  esac
  exit "$code"
}
