//! Any bytes as an archive of images that a job brings.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_containerd::fuzzing::archive(data));
