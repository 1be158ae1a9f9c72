//! Any bytes as a mount table.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_linux::mounts::check(data));
