//! Any bytes as the context of a trace that a caller sends.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_core::fuzzing::trace_context(data));
