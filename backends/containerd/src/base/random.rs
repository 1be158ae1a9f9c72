//! Random bytes.

/// Random bytes for names.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the kernel's random source is always there");
}
