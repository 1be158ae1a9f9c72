//! Any bytes as the roots of a swarm and the certificate of a node.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_swarm::fuzzing::certificates(data));
