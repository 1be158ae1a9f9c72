//! Any bytes as a streaming session, frame by frame.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_streaming::fuzzing::session(data));
