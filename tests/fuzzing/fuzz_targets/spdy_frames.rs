//! Any bytes as frames of SPDY.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_streaming::fuzzing::frames(data));
