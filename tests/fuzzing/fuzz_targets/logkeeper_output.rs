//! Any bytes as output of a container.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_logkeeper::fuzzing::output(data));
