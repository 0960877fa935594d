#!/bin/sh
# mlx4 load|unload|again: loads, unloads or reloads the drivers of a ConnectX-3 in a Linux guest. Loading names the first
# Ethernet interface mlx0 and configures it with the values of the kernel command line: fl.mlx4.ip=ADDRESS/BITS,
# fl.mlx4.mtu=BYTES. MODULE.NAME=VALUE is a parameter of a module. An InfiniBand port has no such interface.

fail() {
    echo "mlx4: $*" >&2
    exit 1
}

# Prints the parameters of a module from the kernel command line.
parameters() {
    for word in $(cat /proc/cmdline); do
        case $word in
            "$1".*) echo "${word#*.}" ;;
        esac
    done
}

# Prints the name of the first port's Ethernet interface.
interface() {
    for path in /sys/bus/pci/drivers/mlx4_core/*/net/*; do
        if [ -e "$path" ] && [ "$(cat "$path/dev_port" "$path/type" | tr '\n' ' ')" = "0 1 " ]; then
            echo "${path##*/}"
        fi
    done
}

load() {
    for module in $(cat /modules/mlx4); do
        [ -d "/sys/module/$module" ] || insmod "/modules/$module.ko" $(parameters "$module") ||
            fail "cannot load $module"
    done
    # The driver may add its interfaces some time after the module is loaded.
    tries=0
    while [ -z "$(interface)" ] && [ $tries -lt 50 ]; do
        usleep 20000
        tries=$((tries + 1))
    done
    card=$(interface)
    [ -n "$card" ] || return 0
    [ "$card" = mlx0 ] || ip link set "$card" name mlx0 || fail "cannot name $card"
    for word in $(cat /proc/cmdline); do
        case $word in
            fl.mlx4.ip=*) address=${word#*=} ;;
            fl.mlx4.mtu=*) mtu=${word#*=} ;;
        esac
    done
    [ -n "$address" ] || return 0
    ip link set mlx0 mtu "$mtu" || fail "mlx0 does not support MTU $mtu"
    # No duplicate address detection, which would delay the use of the IPv6 address by a second.
    echo 0 >/proc/sys/net/ipv6/conf/mlx0/accept_dad
    ip addr add "$address" dev mlx0
    ip link set mlx0 up
    tries=0
    until [ "$(cat /sys/class/net/mlx0/operstate)" = up ]; do
        tries=$((tries + 1))
        [ $tries -lt 500 ] || fail "mlx0 does not come up"
        usleep 20000
    done
}

# Unloads the card's modules in the reverse order of loading.
unload() {
    for module in mlx4_ib mlx4_en mlx4_core; do
        [ ! -d "/sys/module/$module" ] || rmmod "$module" || fail "cannot unload $module"
    done
}

case $1 in
    load) load ;;
    unload) unload ;;
    again) unload && load ;;
    *) fail "usage: mlx4 load|unload|again" ;;
esac
