//! Any bytes as a mount table, for the file system of a log.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_logkeeper::fuzzing::mountinfo(data));
