#!/bin/busybox sh
# The first process of a Linux guest: loads modules, configures the network, then runs commands for the host.
#
# Kernel command line: fl.ip=ADDRESS/BITS and fl.mtu=BYTES configure eth0; fl.rxe=1 puts a SoftRoCE device rxe0 on it.
# Command channel (see channel.rs): one line `NUMBER SECONDS COMMAND` in, with \\ and \n in the command escaped; out
# `done NUMBER STATUS STDOUT-BYTES STDERR-BYTES`, then these bytes. STATUS is `late` if the command took too long.

/bin/busybox mkdir -p /bin /sbin /usr/bin /usr/sbin /proc /sys /dev /tmp /run
/bin/busybox --install -s
export PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/ TERM=dumb

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mkdir -p /run/channel

die() {
    echo "init: $*"
    reboot -f
}

load() {
    for module in $(cat "/modules/$1"); do
        insmod "/modules/$module.ko" || die "cannot load $module"
    done
}

address=
mtu=1500
rxe=0
for word in $(cat /proc/cmdline); do
    case $word in
        fl.ip=*) address=${word#*=} ;;
        fl.mtu=*) mtu=${word#*=} ;;
        fl.rxe=*) rxe=${word#*=} ;;
    esac
done

load base
ip link set lo up
if [ -n "$address" ]; then
    load net
    ip link set eth0 mtu "$mtu" || die "no network device takes MTU $mtu"
    ip addr add "$address" dev eth0
    ip link set eth0 up
fi
if [ "$rxe" = 1 ]; then
    load rdma
    rdma link add rxe0 type rxe netdev eth0 || die "cannot add rxe0"
    tries=0
    until grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state; do
        tries=$((tries + 1))
        [ $tries -lt 250 ] || die "rxe0 does not become active"
        usleep 20000
    done
    mdev -s
fi
ulimit -l unlimited

# Opened for both directions; a write waits until the host has its end open, a read ends when the host is gone.
channel=/dev/vport0p1
[ -c $channel ] || mdev -s
exec 3<>$channel || die "no command channel"
echo "ready" >&3
cd /
while read -r number seconds command <&3; do
    printf '%b' "$command" >/run/channel/command
    rm -f /run/channel/late
    setsid sh /run/channel/command </dev/null >/run/channel/out 2>/run/channel/err 3>&- &
    job=$!
    setsid sh -c "sleep $seconds; : >/run/channel/late; kill -KILL -$job $job" 3>&- 2>/dev/null &
    watchdog=$!
    wait $job
    status=$?
    # The watchdog is its group's leader, except in the instant before its setsid.
    kill -KILL -$watchdog $watchdog 2>/dev/null
    wait $watchdog
    [ -e /run/channel/late ] && status=late
    cp /run/channel/out /run/channel/out.done
    cp /run/channel/err /run/channel/err.done
    echo "done $number $status $(stat -c %s /run/channel/out.done) $(stat -c %s /run/channel/err.done)" >&3
    dd bs=32k if=/run/channel/out.done >&3 2>/dev/null
    dd bs=32k if=/run/channel/err.done >&3 2>/dev/null
done
reboot -f
