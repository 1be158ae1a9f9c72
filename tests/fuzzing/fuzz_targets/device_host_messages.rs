//! Any bytes as what a device plugin of a vendor registers, lists and answers.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_device_host::fuzzing::messages(data));
