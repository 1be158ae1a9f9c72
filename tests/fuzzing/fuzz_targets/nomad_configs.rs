//! Any bytes as the configuration of the Nomad plugin and of a task, in MessagePack.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_nomad::fuzzing::configs(data));
