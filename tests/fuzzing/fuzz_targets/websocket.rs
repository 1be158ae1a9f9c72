//! Any bytes as the frames of a WebSocket.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_streaming::fuzzing::websocket(data));
