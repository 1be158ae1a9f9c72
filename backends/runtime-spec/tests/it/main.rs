//! Whole specs: against golden files, rule by rule, and run by real runtimes.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod golden;
mod real;
mod rules;
mod support;
