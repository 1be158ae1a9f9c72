//! Any bytes as the files of a membership in a swarm.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_swarm::fuzzing::files(data));
