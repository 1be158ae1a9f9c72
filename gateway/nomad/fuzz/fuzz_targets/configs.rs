//! Any bytes as the configuration of a plugin and of a task.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| switchyard_nomad::check_any_config(bytes));
