//! Any bytes as a hosts.toml.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_registry::fuzzing::hosts_toml(data));
