//! Any bytes as a RunPodSandbox request.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_cri::fuzzing::pod(data));
