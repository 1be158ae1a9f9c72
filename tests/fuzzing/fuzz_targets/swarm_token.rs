//! Any bytes as a join token.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_swarm::fuzzing::token(data));
