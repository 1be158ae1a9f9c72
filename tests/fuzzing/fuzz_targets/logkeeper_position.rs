//! Any bytes as a position record.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_logkeeper::fuzzing::position_record(data));
