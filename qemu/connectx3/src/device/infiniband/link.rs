//! The links of ports in InfiniBand mode: their training, and the frames that carry only a symbol.

use super::symbol_frame;
use crate::device::eq::Eqs;
use crate::device::host::Host;
use crate::device::port::Port;
use crate::device::ports::{Ports, port_change};
use crate::device::profile::LinkType;
use crate::subnet::{Change, LinkState};
use platform::Instant;
use roce::wire::Symbol;

impl Ports {
    pub(crate) fn send_symbol(&mut self, index: usize, symbol: Option<Symbol>) {
        if let (Some(port), Some(symbol)) = (self.all.get(index), symbol) {
            self.outbox.push(index, symbol_frame(port.mac(), symbol));
        }
    }

    /// Starts or stops the link's training. The port searches for a partner while it is open, its cable is
    /// plugged in, and no manager has disabled it.
    pub(crate) fn follow_link(&mut self, index: usize, eqs: &mut Eqs, host: &dyn Host) {
        let Some(port) = self.all.get_mut(index) else { return };
        let info = &mut port.ib.managed.info;
        let on = port.link_type == LinkType::InfiniBand && port.open && port.link && !info.is_disabled();
        if on == port.ib.training.is_on() {
            return;
        }
        if on {
            port.ib.training.start(host.now());
            self.train(host.now());
            return;
        }
        let was_active = info.state() == LinkState::Active;
        let told = port.open;
        info.link_down();
        let symbol = port.ib.training.stop();
        self.send_symbol(index, symbol);
        if was_active && told {
            self.report_state(index, LinkState::Down, eqs, host);
        }
    }

    /// Returns the frames that tell the ports' partners that the links are down, before the card resets.
    pub(crate) fn silence(&mut self) -> Vec<(usize, Vec<u8>)> {
        let silent = |(index, port): (usize, &mut Port)| {
            let symbol = port.ib.training.stop()?;
            Some((index, symbol_frame(port.mac(), symbol)))
        };
        self.all.iter_mut().enumerate().filter_map(silent).collect()
    }

    /// Sends the training symbols that are due at `now`.
    pub(crate) fn train(&mut self, now: Instant) {
        for index in 0..self.all.len() {
            let Some(port) = self.all.get_mut(index) else { return };
            let symbol = port.ib.training.on_timer(now);
            self.send_symbol(index, symbol);
        }
    }

    pub(crate) fn receive_symbol(&mut self, index: usize, symbol: Symbol, eqs: &mut Eqs, host: &dyn Host) {
        let Some(port) = self.all.get_mut(index) else { return };
        let (reply, change) = port.ib.training.receive(symbol, host.now());
        let info = &mut port.ib.managed.info;
        let was_active = info.state() == LinkState::Active;
        match change {
            Change::None => {}
            Change::Up | Change::Restarted => info.link_up(),
            Change::Down => info.link_down(),
        }
        if was_active && matches!(change, Change::Down | Change::Restarted) {
            self.report_state(index, LinkState::Down, eqs, host);
        }
        self.send_symbol(index, reply);
    }

    /// Posts the event that a link has become active or inactive.
    pub(crate) fn report_state(&self, index: usize, state: LinkState, eqs: &mut Eqs, host: &dyn Host) {
        eqs.post(&port_change(index, state == LinkState::Active), host);
    }
}
