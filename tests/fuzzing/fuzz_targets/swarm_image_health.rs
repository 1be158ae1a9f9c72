//! Any bytes as the configuration of an image, of which Swarm takes the health check.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_swarm::fuzzing::image_health(data));
