//! The tokens of boots: each is good for one enrolment, for a time, for one machine and one kernel.

use proto::channel::enrolment::{KernelDigest, Request, Token};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use verbs::MacAddr;

/// The time for which a token is good.
const LIFETIME: Duration = Duration::from_secs(120);
/// The number of tokens that one machine can have at a time. Loaders may ask for their configuration again.
const OF_A_MACHINE: usize = 8;

/// The reason for which a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("no such token was made in the last {} s", LIFETIME.as_secs())]
    Unknown,
    #[error("it was used before")]
    Used,
    #[error("it is older than {} s", LIFETIME.as_secs())]
    Expired,
    #[error("it was made for another Ethernet address")]
    OtherMachine,
    #[error("it was made for another image")]
    OtherKernel,
}

/// The tokens that were made.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    made: HashMap<Token, Made>,
}

#[derive(Debug)]
struct Made {
    at: Instant,
    mac: MacAddr,
    kernel: KernelDigest,
    used: bool,
}

impl Tokens {
    /// Adds a token. If the machine has too many, its oldest one ends.
    pub(super) fn add(&mut self, token: Token, mac: MacAddr, kernel: KernelDigest, now: Instant) {
        // A token is remembered for a while after its end, for the reason of its refusal.
        self.made.retain(|_, made| now.duration_since(made.at) < 2 * LIFETIME);
        let of_machine = |made: &Made| made.mac == mac;
        if self.made.values().filter(|made| of_machine(made)).count() >= OF_A_MACHINE {
            let oldest =
                self.made.iter().filter(|(_, made)| of_machine(made)).min_by_key(|(_, made)| made.at);
            if let Some(token) = oldest.map(|(token, _)| token.clone()) {
                self.made.remove(&token);
            }
        }
        self.made.insert(token, Made { at: now, mac, kernel, used: false });
    }

    /// Uses up a token. Also a request that is refused uses it up.
    pub(super) fn redeem(&mut self, request: &Request, now: Instant) -> Result<(), Refusal> {
        let made = self.made.get_mut(&request.token).ok_or(Refusal::Unknown)?;
        let was_used = std::mem::replace(&mut made.used, true);
        match () {
            () if was_used => Err(Refusal::Used),
            () if now.duration_since(made.at) >= LIFETIME => Err(Refusal::Expired),
            () if request.mac != made.mac => Err(Refusal::OtherMachine),
            () if request.kernel != made.kernel => Err(Refusal::OtherKernel),
            () => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn token(byte: u8) -> Token {
        Token::from_bytes([byte; 32])
    }

    fn kernel() -> KernelDigest {
        KernelDigest::of([&b"kernel"[..]])
    }

    fn request(byte: u8) -> Request {
        Request { token: token(byte), mac: MAC, kernel: kernel() }
    }

    fn one(now: Instant) -> Tokens {
        let mut tokens = Tokens::default();
        tokens.add(token(1), MAC, kernel(), now);
        tokens
    }

    #[test]
    fn a_token_is_good_once() {
        let now = Instant::now();
        let mut tokens = one(now);
        assert_eq!(tokens.redeem(&request(1), now), Ok(()));
        assert_eq!(tokens.redeem(&request(1), now), Err(Refusal::Used));
    }

    #[test]
    fn an_invented_token_is_refused() {
        let now = Instant::now();
        assert_eq!(one(now).redeem(&request(2), now), Err(Refusal::Unknown));
    }

    #[test]
    fn a_token_is_good_for_120_seconds() {
        let now = Instant::now();
        let before = now + Duration::from_millis(119_999);
        assert_eq!(one(now).redeem(&request(1), before), Ok(()));
        assert_eq!(one(now).redeem(&request(1), now + Duration::from_secs(120)), Err(Refusal::Expired));
    }

    #[test]
    fn an_old_token_is_forgotten() {
        let now = Instant::now();
        let mut tokens = one(now);
        let later = now + Duration::from_secs(240);
        tokens.add(token(2), MAC, kernel(), later);
        assert_eq!(tokens.redeem(&request(1), later), Err(Refusal::Unknown));
    }

    #[test]
    fn another_machine_is_refused_and_uses_the_token_up() {
        let now = Instant::now();
        let mut tokens = one(now);
        let other = Request { mac: MacAddr([2, 0, 0, 0, 0, 2]), ..request(1) };
        assert_eq!(tokens.redeem(&other, now), Err(Refusal::OtherMachine));
        assert_eq!(tokens.redeem(&request(1), now), Err(Refusal::Used));
    }

    #[test]
    fn another_kernel_is_refused() {
        let now = Instant::now();
        let other = Request { kernel: KernelDigest::of([&b"other"[..]]), ..request(1) };
        assert_eq!(one(now).redeem(&other, now), Err(Refusal::OtherKernel));
    }

    #[test]
    fn a_machine_has_a_number_of_tokens() {
        let now = Instant::now();
        let mut tokens = Tokens::default();
        let at = |byte: u8| now + Duration::from_millis(byte.into());
        for byte in 0..9 {
            tokens.add(token(byte), MAC, kernel(), at(byte));
        }
        tokens.add(token(9), MacAddr([2, 0, 0, 0, 0, 2]), kernel(), at(9));
        assert_eq!(tokens.redeem(&request(0), at(9)), Err(Refusal::Unknown));
        assert_eq!(tokens.redeem(&request(1), at(9)), Ok(()));
        assert_eq!(tokens.redeem(&request(8), at(9)), Ok(()));
    }
}
