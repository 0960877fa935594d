//! The random input of a seed.

/// Returns the bytes of a seed (splitmix64). Every fourth seed has more of them.
pub(crate) fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let words = next() % if seed.is_multiple_of(4) { 400 } else { 60 };
    (0..words).flat_map(|_| next().to_le_bytes()).collect()
}
