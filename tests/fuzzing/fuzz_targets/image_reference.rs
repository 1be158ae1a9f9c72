//! Any bytes as the name of an image.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_core::fuzzing::image_reference(data));
