//! Any bytes as a template in a config of a swarm.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_swarm::fuzzing::template(data));
