//! The steps that end a machine. Each is tried if the ones before it have had no effect.

use crate::Register;
use crate::fadt::Fadt;

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Waits until bit 0 (`SCI_EN`) of the first of these registers is set, after writing `value` to `port`
    /// if it is not: the firmware owns the PM1 registers until then.
    TakeAcpi {
        /// The PM1 control register.
        pm1: Register,
        /// The port of the firmware's commands.
        port: u16,
        /// The command.
        value: u8,
    },
    /// Replaces bits 10 to 13 (`SLP_TYP`, `SLP_EN`) of a 16-bit register.
    Sleep(Register, u16),
    /// Writes a byte.
    Write(Register, u8),
    /// Makes the processor shut down, which resets the machine.
    TripleFault,
}

/// The bits `SLP_TYP` and `SLP_EN` of a PM1 control register.
pub const SLEEP_BITS: u16 = 0xf << 10;
const SLEEP_ENABLE: u16 = 1 << 13;

/// The registers by which a machine ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Power {
    /// The registers of the FADT.
    pub fadt: Fadt,
    /// The sleep types of soft off for PM1a and PM1b, from byte code.
    pub soft_off: Option<[u8; 2]>,
}

impl Power {
    /// Returns the steps that turn the machine off. There may be none.
    pub fn off(&self) -> impl Iterator<Item = Step> {
        let [a, b] = self.fadt.pm1;
        let types = self.soft_off;
        let take = a.zip(self.fadt.enable);
        let take = take.map(|(pm1, (port, value))| Step::TakeAcpi { pm1, port, value });
        // PM1a has `SLP_EN` last: some machines enter the state with that write.
        let sleep = |register: Option<Register>, n: usize| {
            let slp_typ = types.and_then(|types| types.get(n).copied());
            let (register, slp_typ) = register.zip(slp_typ)?;
            Some(Step::Sleep(register, u16::from(slp_typ & 7) << 10 | SLEEP_ENABLE))
        };
        let reduced = self.fadt.sleep_control.map(|register| {
            let soft_off = types.map_or(5, |[a, _]| a);
            Step::Write(register, (soft_off & 7) << 2 | 1 << 5)
        });
        let pm1 = types.and(take).into_iter().chain(sleep(b, 1)).chain(sleep(a, 0));
        reduced.into_iter().chain(pm1)
    }

    /// Returns the steps that reset the machine.
    pub fn reset(&self) -> impl Iterator<Item = Step> {
        let named = self.fadt.reset.map(|(register, value)| Step::Write(register, value));
        // Port 0xcf9 of chipsets: first the kind of reset, then the reset.
        let chipset = [0x02, 0x06, 0x0e].map(|value| Step::Write(Register::Port(0xcf9), value));
        // The keyboard controller pulses the reset line.
        let keyboard = Step::Write(Register::Port(0x64), 0xfe);
        named.into_iter().chain(chipset).chain([keyboard, Step::TripleFault])
    }

    /// Returns the registers in memory, which must be mapped before the machine ends.
    pub fn in_memory(&self) -> impl Iterator<Item = u64> {
        let fadt = &self.fadt;
        let all = [fadt.reset.map(|(r, _)| r), fadt.sleep_control, fadt.pm1[0], fadt.pm1[1]];
        all.into_iter().flatten().filter_map(|r| match r {
            Register::Memory(at) => Some(at),
            Register::Port(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const A: Register = Register::Port(0x404);
    const B: Register = Register::Port(0x504);

    #[test]
    fn a_server_is_turned_off_after_acpi_is_taken() {
        let fadt = Fadt { pm1: [Some(A), Some(B)], enable: Some((0xb2, 0xa0)), ..Fadt::default() };
        let power = Power { fadt, soft_off: Some([5, 6]) };
        assert_eq!(
            power.off().collect::<Vec<_>>(),
            [
                Step::TakeAcpi { pm1: A, port: 0xb2, value: 0xa0 },
                Step::Sleep(B, 6 << 10 | 1 << 13),
                Step::Sleep(A, 5 << 10 | 1 << 13),
            ]
        );
        // Nothing is known of the sleep type: the firmware keeps the registers.
        assert_eq!(Power { fadt, soft_off: None }.off().count(), 0);
    }

    #[test]
    fn reduced_hardware_has_one_register() {
        let sleep_control = Some(Register::Memory(0xfea0_0002));
        let fadt = Fadt { hardware_reduced: true, sleep_control, ..Fadt::default() };
        let power = Power { fadt, soft_off: None };
        assert_eq!(
            power.off().collect::<Vec<_>>(),
            [Step::Write(Register::Memory(0xfea0_0002), 5 << 2 | 1 << 5)]
        );
        assert_eq!(power.in_memory().collect::<Vec<_>>(), [0xfea0_0002]);
    }

    #[test]
    fn a_reset_tries_all_ways_in_order() {
        let port = |port, value| Step::Write(Register::Port(port), value);
        let ways = [port(0xcf9, 2), port(0xcf9, 6), port(0xcf9, 0x0e), port(0x64, 0xfe), Step::TripleFault];
        assert_eq!(Power::default().reset().collect::<Vec<_>>(), ways);
        let named = Fadt { reset: Some((Register::Memory(0xfed0_0000), 1)), ..Fadt::default() };
        let steps: Vec<_> = Power { fadt: named, soft_off: None }.reset().collect();
        assert_eq!(steps[0], Step::Write(Register::Memory(0xfed0_0000), 1));
        assert_eq!(steps[1..], ways);
    }
}
