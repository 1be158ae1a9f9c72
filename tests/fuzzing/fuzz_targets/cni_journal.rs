//! Any bytes as the journal of a network attachment.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_cni::fuzzing::journal(data));
