//! Any bytes as a user and the account files of an image.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_runtime_spec::fuzzing::accounts(data));
