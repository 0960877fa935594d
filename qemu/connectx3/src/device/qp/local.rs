//! Segments of work requests that change keys (Linux `include/linux/mlx4/qp.h`, libmlx4 `wqe.h`).

use super::wqe::{Malformed, Opcode, Segments};
use crate::device::memory::{Access, Bind, FastRegister, LocalWork, Rights};

/// The permission bits in the first word of a FAST_REG or bind segment.
const PERMISSIONS: [(u32, Access); 5] = [
    (27, Access::LocalRead),
    (28, Access::LocalWrite),
    (29, Access::RemoteRead),
    (30, Access::RemoteWrite),
    (31, Access::Atomic),
];

fn rights(word: u32, which: impl Fn(Access) -> bool) -> Rights {
    Rights::new(
        PERMISSIONS
            .into_iter()
            .filter(|&(bit, access)| word >> bit & 1 != 0 && which(access))
            .map(|(_, access)| access),
    )
}

/// Parses the work of an opcode that the card executes itself. Returns `None` for an opcode that sends.
pub(crate) fn parse(opcode: Opcode, segments: &mut Segments<'_>) -> Result<Option<LocalWork>, Malformed> {
    Ok(Some(match opcode {
        Opcode::Nop => LocalWork::Nop,
        Opcode::FastRegister => {
            let words = segments.words::<12>()?;
            LocalWork::FastRegister(FastRegister {
                rights: rights(words[0], |_| true),
                key: words[1],
                pages: double(words[2], words[3]),
                start: double(words[4], words[5]),
                len: double(words[6], words[7]),
                first_byte: words[8],
                log_page: u8::try_from(words[9]).unwrap_or(u8::MAX),
            })
        }
        Opcode::LocalInvalidate => LocalWork::Invalidate(segments.words::<8>()?[2]),
        Opcode::Bind => {
            let words = segments.words::<8>()?;
            LocalWork::Bind(Bind {
                rights: rights(words[0], |access| !matches!(access, Access::LocalRead | Access::LocalWrite)),
                type2: words[1] >> 31 & 1 != 0,
                zero_based: words[1] >> 30 & 1 != 0,
                key: words[2],
                lkey: words[3],
                start: double(words[4], words[5]),
                len: double(words[6], words[7]),
            })
        }
        _ => return Ok(None),
    }))
}

const fn double(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}
