//! Any bytes as what the kernel sends of links, addresses, routes and neighbours.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_network::fuzzing::rtnetlink(data));
