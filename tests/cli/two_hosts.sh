#!/usr/bin/env bash
# A run on two hosts ends in the same bits as on one: ranks that exchange messages over a link and share no memory, one and two
# on each host. The hosts are network namespaces; where those cannot be made the test is skipped (77), with the reason.
source "$(dirname "$0")/../support/cli.sh"

two_hosts=$LOCKSTEP_SOURCE_DIR/tests/bench/two_hosts.sh
"$two_hosts" "$LOCKSTEP" doctor >doctor.log 2>&1
code=$?
[ "$code" -ne 77 ] || { cat doctor.log; exit 77; }
grep -q "2 ranks on 2 nodes" doctor.log || fail "two hosts are not two nodes (exit $code): $(cat doctor.log)"

digits digits.h5
cat >run.ini <<'INI'
[model]
name = resnet
blocks = 1 1
width = 8
in_channels = 1
classes = 10
[data]
train = digits.h5
augment = crop flip
[train]
steps = 8
global_batch = 48
shards = 6
seed = 3
[optimizer]
lr = 2e-3
clip = 0.5
[ddp]
bucket_mb = 0.02
first_bucket_mb = 0.005
INI
ranks 1 train run.ini --run alone >log-alone 2>&1 || fail "1 rank: $(tail -n 3 log-alone)"
for count in 1 2; do
  "$two_hosts" -n "$count" "$LOCKSTEP" train run.ini --run "hosts-$count" >"log-$count" 2>&1 ||
    fail "$count ranks on each of two hosts: $(tail -n 3 "log-$count")"
  grep -q "2 nodes" "log-$count" || fail "it did not run on two hosts: $(head -n 5 "log-$count")"
  expect_same alone/checkpoints/latest "hosts-$count/checkpoints/latest"
done

# A program that fails on the hosts fails here, and leaves nothing behind.
"$two_hosts" sh -c 'exit 3' >/dev/null 2>&1
[ $? -eq 3 ] || fail "a failing program's exit code is lost"
left=$(ip netns list | grep -E '^h[12]-[0-9]+' | while read -r host _; do
  kill -0 "${host#h?-}" 2>/dev/null || echo "$host"  # of a script that has ended
done)
[ -z "$left" ] || fail "namespaces left behind: $left"
finish
