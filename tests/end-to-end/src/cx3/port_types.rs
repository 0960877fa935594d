//! Tests of port types: set when the driver is loaded and at run time. Unsupported types must be refused.

use super::infiniband::{connected, end_subnet, subnet};
use super::ports::{configure_second, ethernet};
use super::{Step, session};
use crate::runner::Case;
use anyhow::{Result, ensure};
use lab::cx3::lab::{Port, SOON, Wire};
use lab::cx3::{Lab, Plan};
use qemu::cx3::CardConfig;

/// The driver's files of a card, one per port.
const FILES: &str = "/sys/bus/pci/drivers/mlx4_core/*:*/mlx4_port";

pub(super) fn cases() -> Vec<Case> {
    let cards = |profile| vec![CardConfig::profile(profile); 2];
    let switched = Plan { cards: cards("vpi"), ..Plan::default() };
    let mixed = Plan {
        cards: cards("vpi-2port"),
        module_parameters: vec!["mlx4_core.port_type_array=1,2".into()],
        ..Plan::default()
    };
    vec![
        session("port type at run time", switched, || {
            let mut steps = vec![Step::new("Ethernet at first", |lab| is(lab, Port::FIRST, Kind::Ethernet))];
            steps.extend(ethernet(Port::FIRST, Wire::V2));
            steps.push(Step::new("to InfiniBand", |lab| set(lab, Port::FIRST, Kind::InfiniBand)));
            steps.extend(subnet(Port::FIRST));
            steps.extend(connected(Port::FIRST));
            steps.push(Step::new("opensm ends", end_subnet));
            steps.push(Step::new("back to Ethernet", |lab| {
                set(lab, Port::FIRST, Kind::Ethernet)?;
                // The interface is a new one.
                (0..lab.machines()).try_for_each(|machine| lab.check(machine, "mlx4 load").map(drop))
            }));
            steps.extend(ethernet(Port::FIRST, Wire::V2));
            // The card cannot sense the type, so the port keeps its type.
            steps.push(Step::new("automatic", |lab| {
                let file = format!("$(echo {FILES}1)");
                let word = lab.check(0, &format!("echo auto >{file} && cat {file}"))?;
                ensure!(word.trim() == "auto (eth)", "the port is {word}");
                super::ports::ping(lab, Port::FIRST)
            }));
            steps
        })
        .full_if(true),
        session("ports of both kinds", mixed, || {
            let mut steps = vec![
                Step::new("kinds", |lab| {
                    is(lab, Port::FIRST, Kind::InfiniBand)?;
                    is(lab, Port::SECOND, Kind::Ethernet)
                }),
                Step::new("second port", configure_second),
            ];
            steps.extend(ethernet(Port::SECOND, Wire::V2));
            steps.extend(subnet(Port::FIRST));
            steps.extend(connected(Port::FIRST));
            steps.push(Step::new("opensm ends", end_subnet));
            steps.push(Step::new("the other way round", |lab| {
                set(lab, Port::SECOND, Kind::InfiniBand)?;
                set(lab, Port::FIRST, Kind::Ethernet)?;
                (0..lab.machines()).try_for_each(|machine| lab.check(machine, "mlx4 load").map(drop))
            }));
            steps.extend(ethernet(Port::FIRST, Wire::V2));
            steps.extend(subnet(Port::SECOND));
            steps.extend(connected(Port::SECOND));
            steps
        })
        .full_if(true),
        session("port type refused", Plan { cards: cards("pro-2port"), ..Plan::default() }, || {
            vec![
                Step::new("InfiniBand on an Ethernet card", |lab| {
                    refused(
                        lab,
                        Port::FIRST,
                        "ib",
                        "Requested port type for port 1 is not supported on this HCA",
                    )
                }),
                Step::new("ping after that", |lab| super::ports::ping(lab, Port::FIRST)),
            ]
        })
        .full_if(true),
    ]
}

/// The type of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    InfiniBand,
    Ethernet,
}

impl Kind {
    /// Returns the driver's word for the type.
    const fn word(self) -> &'static str {
        match self {
            Self::InfiniBand => "ib",
            Self::Ethernet => "eth",
        }
    }

    /// Returns the verbs' word for the type.
    const fn link_layer(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        }
    }
}

/// Checks that the port has the type `kind` in all machines, for the driver and for the verbs.
fn is(lab: &mut Lab, port: Port, kind: Kind) -> Result<()> {
    for machine in 0..lab.machines() {
        let word = lab.check(machine, &format!("cat {FILES}{}", port.0))?;
        ensure!(word.trim() == kind.word(), "machine {machine}: the port is {word}");
        let layer =
            lab.check(machine, &format!("cat /sys/class/infiniband/mlx4_0/ports/{}/link_layer", port.0))?;
        ensure!(layer.trim() == kind.link_layer(), "machine {machine}: the link layer is {layer}");
    }
    Ok(())
}

/// Sets the type in all machines.
fn set(lab: &mut Lab, port: Port, kind: Kind) -> Result<()> {
    for machine in 0..lab.machines() {
        lab.guest(machine)?.check(&format!("echo {} >$(echo {FILES}{})", kind.word(), port.0), SOON)?;
    }
    is(lab, port, kind)
}

/// Checks that the driver refuses a word for a port with a reason.
fn refused(lab: &mut Lab, port: Port, word: &str, why: &str) -> Result<()> {
    let before = lab.check(0, &format!("cat {FILES}{}", port.0))?;
    let said =
        lab.check(0, &format!("dmesg -c >/dev/null; ! echo {word} >$(echo {FILES}{}) && dmesg", port.0))?;
    ensure!(said.contains(why), "the driver says {said}");
    let after = lab.check(0, &format!("cat {FILES}{}", port.0))?;
    ensure!(before == after, "the port was {before} and is {after}");
    Ok(())
}
