//! Any bytes as an entry of the logkeeper's state directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_logkeeper::fuzzing::state_entry(data));
