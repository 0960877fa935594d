//! Steps on the ports of a card, among them the configuration of the second one's Ethernet interface.

use super::Step;
use anyhow::Result;
use lab::cx3::Lab;
use lab::cx3::lab::{Port, SOON, Wire};

/// Returns steps of traffic over an Ethernet port.
pub(super) fn ethernet(port: Port, wire: Wire) -> Vec<Step> {
    let mut steps = vec![Step::new(format!("ping, port {}", port.0), move |lab| ping(lab, port))];
    let rdma = |program: &'static str, options: &'static str| {
        Step::new(format!("{program} {options} {wire:?}, port {}", port.0), move |lab| {
            lab.perftest_on(port, wire, program, options, SOON).map(drop)
        })
    };
    steps.extend([
        rdma("ib_write_lat", "-s 8 -n 100"),
        rdma("ib_read_lat", "-s 4096 -n 50"),
        rdma("ib_send_lat", "-s 64 -n 100"),
        rdma("ib_atomic_lat", "-n 50"),
    ]);
    steps
}

pub(super) fn ping(lab: &mut Lab, port: Port) -> Result<()> {
    lab.check(1, &format!("ping -c 3 -W 5 {}", port.address(0))).map(drop)
}

/// Names the Ethernet interface of the second port, assigns its address, and waits until it is up.
pub(super) fn configure_second(lab: &mut Lab) -> Result<()> {
    for machine in 0..lab.machines() {
        let address = Port::SECOND.address(machine);
        // Both ports are on one switch, so each must answer for its own address only.
        let script = format!(
            "for path in /sys/bus/pci/drivers/mlx4_core/*/net/*; do \
             [ \"$(cat $path/dev_port $path/type | tr '\\n' ' ')\" != '1 1 ' ] || card=${{path##*/}}; done; \
             [ -n \"$card\" ] || exit 1; [ $card = mlx1 ] || ip link set $card name mlx1; \
             echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore; echo 2 >/proc/sys/net/ipv4/conf/all/arp_announce; \
             ip link set mlx1 mtu 4200; echo 0 >/proc/sys/net/ipv6/conf/mlx1/accept_dad; \
             ip addr add {address}/24 dev mlx1; ip link set mlx1 up; \
             until [ \"$(cat /sys/class/net/mlx1/operstate)\" = up ]; do usleep 20000; done"
        );
        lab.check(machine, &script)?;
    }
    Ok(())
}
