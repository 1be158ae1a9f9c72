//! Any bytes as what managers of a swarm send in a session.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_swarm::fuzzing::messages(data));
