#!/bin/busybox sh
# The first process of a Linux guest: loads modules, configures the network, then runs commands for the host.
#
# Kernel command line: fl.ip=ADDRESS/BITS, fl.mtu=BYTES and fl.mac=MAC configure eth0, the card on the fabric; fl.rxe=1
# puts a SoftRoCE device rxe0 on it; fl.management=MAC names the card on QEMU's user-mode network mgmt0. fl.mlx4=1 loads
# the drivers of a ConnectX-3 and configures it (see mlx4.sh).
#
# With fl.system=1 the first process becomes the systemd of the system on the disk; the commands' root directory remains
# that of the initramfs.
#
# There are two command channels (see channel.rs), so that commands can run while another one takes long. A request is
# one line `NUMBER SECONDS KIND COMMAND`, with \\ and \n in the command escaped. The reply is `done NUMBER STATUS
# STDOUT-BYTES STDERR-BYTES`, followed by these bytes. STATUS is `late` if the command took too long. KIND is `-` for a
# command without input, or a word chosen by the host for one whose input and output are streams (see streams.rs):
# port 3 receives the input as pieces `LENGTH\n` and bytes, the last of length 0; ports 4 and 5 send output and error,
# each enclosed by two occurrences of the word.

/bin/busybox mkdir -p /bin /sbin /usr/bin /usr/sbin /proc /sys /dev /tmp /run
/bin/busybox --install -s
export PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/root TERM=dumb

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mkdir -p /run/jobs
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
hostname linux-peer

die() {
    echo "init: $*"
    reboot -f
}

load() {
    for module in $(cat "/modules/$1"); do
        [ -d "/sys/module/$module" ] || insmod "/modules/$module.ko" || die "cannot load $module"
    done
}

# Names the card with a MAC address. If another card has the name, that one is renamed first.
name_card() {
    [ "$(cat "/sys/class/net/$2/address" 2>/dev/null)" != "$1" ] || return 0
    [ ! -e "/sys/class/net/$2" ] || ip link set "$2" name "other$2"
    for card in /sys/class/net/*; do
        if [ "$(cat "$card/address")" = "$1" ]; then
            ip link set "${card##*/}" name "$2"
            return
        fi
    done
    die "no network card $1"
}

address=
mac=
management=
mtu=1500
rxe=0
mlx4=0
system=0
for word in $(cat /proc/cmdline); do
    case $word in
        fl.ip=*) address=${word#*=} ;;
        fl.mac=*) mac=${word#*=} ;;
        fl.management=*) management=${word#*=} ;;
        fl.mtu=*) mtu=${word#*=} ;;
        fl.rxe=*) rxe=${word#*=} ;;
        fl.mlx4=*) mlx4=${word#*=} ;;
        fl.system=*) system=${word#*=} ;;
    esac
done

load base
ip link set lo up
[ -z "$address$management" ] || load net
if [ -n "$management" ]; then
    name_card "$management" mgmt0
    # The address that QEMU assigns to the only machine of such a network.
    ip addr add 10.0.2.15/24 dev mgmt0
    ip link set mgmt0 up
    ip route add default via 10.0.2.2
    echo "nameserver 10.0.2.3" >/etc/resolv.conf
fi
if [ -n "$address" ]; then
    name_card "$mac" eth0
    ip link set eth0 mtu "$mtu" || die "no network device supports MTU $mtu"
    # No duplicate address detection, which would delay the use of the IPv6 address by a second.
    echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
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
fi
if [ "$mlx4" = 1 ]; then
    sh /bin/mlx4 load || die "the ConnectX-3 is not up"
fi
ulimit -l unlimited
cd /root

# Passes on the pieces of a command's input. Descriptor 6 is the port.
feed() {
    # The command may end before its input.
    trap '' PIPE
    while read -r length <&6 && [ "$length" != 0 ]; do
        dd bs="$length" count=1 iflag=fullblock <&6 2>/dev/null
    done
}

# Runs commands from a channel until the host closes it. Descriptor 3 is the channel, 6 the input port; 7, 8 and 9 are
# a command's input.
serve() {
    dir=/run/channel$1
    mkdir -p "$dir"
    mkfifo "$dir/in"
    exec 3<>"/dev/vport0p$1" || die "no command channel"
    echo "ready" >&3
    while read -r number seconds kind command <&3; do
        printf '%b' "$command" >"$dir/command"
        rm -f "$dir/late" "$dir/pid"
        late="sleep $seconds; : >$dir/late; job=\$(cat $dir/pid); kill -KILL -\$job \$job"
        setsid sh -c "$late" 3>&- 6<&- 2>/dev/null &
        watchdog=$!
        # In the foreground, because a shell's background commands ignore Ctrl-C permanently. Each is a session of its own.
        run="echo \$\$ >$dir/pid; exec sh $dir/command"
        if [ "$kind" = - ]; then
            setsid sh -c "$run" </dev/null >"$dir/out" 2>"$dir/err" 3>&- 6<&-
            status=$?
        else
            # Opened for both directions first, so that no open waits for the other end.
            exec 7<>"$dir/in" 8<"$dir/in" 9>"$dir/in" 7>&-
            # Not as redirections of the function: the shell would keep the descriptors to restore them, and be a reader.
            (
                exec >&9 3>&- 8<&- 9>&-
                feed
            ) &
            feeder=$!
            exec 9>&-
            printf '%s' "$kind" >/run/out
            printf '%s' "$kind" >/run/err
            (
                exec <&8 3>&- 6<&- 8<&-
                exec setsid sh -c "$run" >/run/out 2>/run/err
            )
            status=$?
            exec 8<&-
            : >"$dir/out"
            : >"$dir/err"
        fi
        # The watchdog is the leader of its process group, except in the instant before its setsid.
        kill -KILL -$watchdog $watchdog 2>/dev/null
        wait $watchdog
        [ -e "$dir/late" ] && status=late
        if [ "$kind" != - ]; then
            printf '%s' "$kind" >/run/out
            printf '%s' "$kind" >/run/err
        fi
        cp "$dir/out" "$dir/out.done"
        cp "$dir/err" "$dir/err.done"
        echo "done $number $status $(stat -c %s "$dir/out.done") $(stat -c %s "$dir/err.done")" >&3
        dd bs=32k if="$dir/out.done" >&3 2>/dev/null
        dd bs=32k if="$dir/err.done" >&3 2>/dev/null
        # The host sends no more input once it knows that the command has ended.
        [ "$kind" = - ] || wait $feeder
    done
    reboot -f
}

# A port can be opened only once at a time, so a command writes to a pipe, which always has a writer.
mkfifo /run/out /run/err
[ -c /dev/vport0p1 ] || mdev -s
cat <>/run/out >/dev/vport0p4 &
cat <>/run/err >/dev/vport0p5 &
exec 6</dev/vport0p3 || die "no input port"
# The channels are opened for both directions; a write waits until the host has opened its end, a read ends when the
# host has closed it.
serve 2 &
if [ "$system" != 1 ]; then
    serve 1
fi
serve 1 &
load disk
mkdir /system
mount -t ext4 /dev/vda /system || die "no system on the disk"
cd /system
mount --move . /
exec chroot . /lib/systemd/systemd
