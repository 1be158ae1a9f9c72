//! Any bytes, cut anywhere, through the filter that rewrites `:authority`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((cut, bytes)) = bytes.split_first() {
        switchyard_authority::check::check_any_bytes(bytes, usize::from(*cut));
    }
});
