//! Any bytes as what a kubelet asks a device plugin, and as what it says its pods have.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_device_plugin::fuzzing::messages(data));
