#!/bin/busybox sh
# The first process of the emulated machine: runs /commands, one a line. Lines for run.sh begin with "@"; after "@off" it
# ends the emulator.
# shellcheck shell=dash
export PATH=/bin:/usr/bin HOME=/tmp OMP_NUM_THREADS=1
busybox mkdir -p /proc /sys /dev /tmp
busybox mount -t proc none /proc
busybox mount -t sysfs none /sys
busybox mount -t devtmpfs none /dev
busybox mkdir -p /dev/shm
busybox mount -t tmpfs none /dev/shm
exec </dev/ttyS0 >/dev/ttyS0 2>&1
busybox ip link set lo up
echo "@processor: $(busybox sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo)"
echo "@flags: $(busybox grep -m 1 -o -w -E 'avx2|avx512f|avx512bw|avx512_vnni|avx512_bf16|amx_tile|amx_bf16' /proc/cpuinfo |
  busybox tr '\n' ' ')"
# shellcheck source=/dev/null
. /environment
while read -r command; do
  echo "@start $command"
  sh -c "$command" </dev/null
  printf '\n@end %s %s\n' $? "$command"
done </commands
echo "@off"
while :; do busybox sleep 1000; done
