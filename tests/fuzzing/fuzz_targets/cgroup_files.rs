//! Any bytes as the files of control groups.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_cgroup::fuzzing::files(data));
