//! Any bytes as a task that a manager of a swarm assigns.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_swarm::fuzzing::task(data));
