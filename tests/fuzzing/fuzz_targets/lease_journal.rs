//! Any bytes as the journal of leases of devices.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_ledger::fuzzing::journal(data));
