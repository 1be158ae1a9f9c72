//! Any bytes, cut anywhere, through the filter that rewrites `:authority`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_authority::fuzzing::connection(data));
