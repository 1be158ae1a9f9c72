//! Any bytes as the configuration of an image.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_registry::fuzzing::image_config(data));
