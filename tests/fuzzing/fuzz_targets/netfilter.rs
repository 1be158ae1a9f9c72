//! Any bytes as messages of netfilter.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_network::nft::fuzzing::netfilter(data));
