//! Any bytes as the configuration of devices.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_devices::fuzzing::config(data));
