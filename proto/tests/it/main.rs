//! The wire types: their bytes, and what they show of secrets.

mod redact;
mod wire;
