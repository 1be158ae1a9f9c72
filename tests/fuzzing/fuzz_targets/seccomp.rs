//! Any bytes as a seccomp profile.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_runtime_spec::fuzzing::seccomp(data));
