//! Any bytes as a segment of the history.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_operator::fuzzing::history_records(data));
