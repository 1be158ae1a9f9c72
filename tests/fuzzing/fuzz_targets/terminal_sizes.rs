//! Any bytes as sizes of a terminal.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_streaming::fuzzing::resize(data));
