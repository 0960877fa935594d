//! The RNICs of nodes: the software RNIC, or an emulated card with the mlx4 driver in the same process.

use crate::SimPort;
use crate::shadow::{Serial, Shadows, Watched};
use cards::{Driver, Machine};
use connectx3::device::Profile;
use lite::testing::{Device, Host};
use mlx4::{Config as CardConfig, Health};
use platform::{Instant, Platform};
use softroce::{EthernetPort, SoftRoce};
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use verbs::{Gid, MacAddr, PortState, Rnic};

/// The environment variable with the RNICs of nodes unless a test chooses them: a list that [`Nics`] parses.
const VARIABLE: &str = "FERROLITE_SIM_NIC";
/// The number of frames that a card receives at once.
const BUDGET: usize = 64;
/// The time that a link has to come up.
const LINK_LIMIT: Duration = Duration::from_secs(10);

/// A kind of RNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nic {
    /// The software RNIC, softroce.
    SoftRoce,
    /// An emulated card with the given profile, on Ethernet.
    Card(&'static str),
}

impl FromStr for Nic {
    type Err = String;

    /// Parses the form of `cargo xtask run --nic`: `softroce`, `cx3`, `cx3-vf`, `cx3:PROFILE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let profile = match text {
            "softroce" => return Ok(Self::SoftRoce),
            "cx3" => "pro",
            "cx3-vf" => "vf",
            other => other.strip_prefix("cx3:").ok_or_else(|| {
                format!("`{other}` is no RNIC: there are softroce, cx3, cx3-vf, cx3:PROFILE")
            })?,
        };
        let known = Profile::NAMES.iter().find(|name| **name == profile);
        let known =
            known.ok_or_else(|| format!("there is no card `{profile}`: {}", Profile::NAMES.join(", ")))?;
        if *known == "ib" {
            return Err("`cx3:ib` takes a subnet manager, which a simulated cluster has not".to_owned());
        }
        Ok(Self::Card(known))
    }
}

/// The RNICs of a cluster's nodes. Nodes get them in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nics(Vec<Nic>);

impl FromStr for Nics {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        list.split(',').map(Nic::from_str).collect::<Result<_, _>>().map(Self)
    }
}

impl Default for Nics {
    /// Returns the RNICs of the environment variable, or else the software RNIC.
    ///
    /// # Panics
    /// If the value of the variable is invalid.
    fn default() -> Self {
        match std::env::var(VARIABLE) {
            Ok(list) => list.parse().unwrap_or_else(|why| panic!("{VARIABLE}={list}: {why}")),
            Err(_) => Self(vec![Nic::SoftRoce]),
        }
    }
}

impl Nics {
    /// Returns the RNIC of node `i`, counted from 1.
    pub(crate) fn of(&self, i: usize) -> Nic {
        self.0[(i - 1) % self.0.len()]
    }
}

/// An RNIC in its node. It has no address yet.
pub(crate) enum Plugged {
    SoftRoce(Arc<SoftRoce<SimPort, spin::Mutex<()>>>),
    Card(Arc<Card>),
}

impl Plugged {
    /// Makes an RNIC on `port`, in `host`, which is machine `serial`.
    pub(crate) fn new(
        nic: Nic,
        mac: MacAddr,
        port: SimPort,
        host: &Arc<Host>,
        serial: Serial,
        shadows: &Arc<Shadows>,
    ) -> Self {
        match nic {
            Nic::SoftRoce => {
                let mut key = [0; 16];
                host.fill_random(&mut key);
                let config = softroce::Config::new(Gid([0; 16]), key);
                let memory = Watched::new(host, serial, port.sender(), shadows);
                Self::SoftRoce(Arc::new(SoftRoce::new(port, Arc::new(memory), config)))
            }
            Nic::Card(profile) => Self::Card(Card::new(profile, mac, port, host)),
        }
    }

    pub(crate) fn rnic(&self) -> Arc<dyn Rnic> {
        match self {
            Self::SoftRoce(rnic) => rnic.clone(),
            Self::Card(card) => card.driver.clone(),
        }
    }

    pub(crate) fn set_gid(&self, gid: Gid) {
        match self {
            Self::SoftRoce(rnic) => rnic.set_gid(gid),
            Self::Card(card) => card.driver.set_gid(gid).expect("a card takes an address"),
        }
    }

    /// Makes the card fail. Returns false if this is not a card that can fail.
    pub(crate) fn fail(&self) -> bool {
        match self {
            Self::SoftRoce(_) => false,
            Self::Card(card) => card.fail(),
        }
    }

    /// Returns the device that must be polled in addition to the RNIC.
    pub(crate) fn device(&self) -> Option<Arc<dyn Device>> {
        match self {
            Self::SoftRoce(_) => None,
            Self::Card(card) => Some(card.clone()),
        }
    }
}

/// A card with its driver, on a port of the switch. It is recovered when it has failed.
pub(crate) struct Card {
    machine: Arc<Machine>,
    driver: Arc<Driver>,
    is_virtual: bool,
    port: Mutex<SimPort>,
}

impl Card {
    fn new(profile: &str, mac: MacAddr, port: SimPort, host: &Arc<Host>) -> Arc<Self> {
        let (clock, is_virtual) = (host.clone(), profile == "vf");
        let profile = Profile::named(profile, mac).expect("a name that was looked up");
        let machine = Machine::with_clock(profile, host.arena(), Box::new(move || clock.now()));
        let driver = machine.start(&CardConfig::default()).expect("a card that starts");
        let end = machine.bus.clock() + LINK_LIMIT;
        while driver.attributes().port_state != PortState::Active {
            assert!(machine.bus.clock() < end, "the link does not come up");
            machine.advance(Duration::from_millis(1));
            machine.card.lock().expect("no panic under the lock").progress(&machine.bus);
            driver.progress(machine.bus.clock(), BUDGET);
        }
        Arc::new(Self { machine, driver: Arc::new(driver), is_virtual, port: Mutex::new(port) })
    }

    /// Makes the card fail until it is reset. Returns false for a virtual function, which only its master can
    /// recover.
    fn fail(&self) -> bool {
        /// The content of a card's error buffer after a failure; any value but 0.
        const ERROR: u32 = 0xdead;
        if !self.is_virtual {
            self.machine.fail_until_reset(ERROR);
        }
        !self.is_virtual
    }

    /// Recovers the card if it has failed, and returns the time of the next step.
    fn recover(&self) -> Option<Instant> {
        match self.driver.recover(self.machine.bus.clock()) {
            Health::Recovering { next } => Some(next),
            Health::Ok | Health::Lost { .. } => None,
        }
    }
}

impl Device for Card {
    fn poll(&self, _: Instant) -> bool {
        self.recover();
        // The driver uses the card's clock, which is ahead of the host's by the time that commands have
        // waited.
        self.driver.progress(self.machine.bus.clock(), BUDGET);
        let Machine { bus, card, .. } = &*self.machine;
        let writes = || bus.writes.load(Ordering::Relaxed);
        let (before, mut any) = (writes(), false);
        let mut port = self.port.lock().expect("no panic under the lock");
        let mut card = card.lock().expect("no panic under the lock");
        loop {
            let taken = port.receive(BUDGET, &mut |frame| card.receive(0, frame, bus));
            card.progress(bus);
            let sent = card.take_outbox();
            if taken == 0 && sent.is_empty() {
                break;
            }
            any = true;
            for (_, frame) in sent {
                port.transmit(frame.len(), &mut |buf| {
                    buf.copy_from_slice(&frame);
                    frame.len()
                });
            }
        }
        // The driver is polled, so messages wake no one here.
        bus.interrupts.lock().expect("no panic under the lock").clear();
        any || writes() != before
    }

    fn next_deadline(&self) -> Option<Instant> {
        let of_card = self.machine.card.lock().expect("no panic under the lock").next_deadline();
        let at = of_card.into_iter().chain(self.recover()).min()?;
        Some(Instant::from_nanos(at.as_nanos().saturating_sub(self.machine.waited().as_nanos() as u64)))
    }
}
