//! Digests of what has no content.

/// A deterministic digest that is derived from a text.
pub(crate) fn digest_of(text: &str) -> String {
    // FNV-1a with four initial values: the digests only need to be distinct and reproducible.
    let block = |salt: u64| {
        let start = 0xcbf2_9ce4_8422_2325_u64 ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        text.bytes().fold(start, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    format!(
        "sha256:{:016x}{:016x}{:016x}{:016x}",
        block(1),
        block(2),
        block(3),
        block(4)
    )
}
