//! Any bytes as a line of the logkeeper.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_logkeeper::fuzzing::reply(data));
