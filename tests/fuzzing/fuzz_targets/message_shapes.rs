//! Any bytes as a message of a protocol, counted before they are decoded.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_proto::fuzzing::message_shapes(data));
