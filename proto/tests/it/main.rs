//! The wire types: their bytes, what they show of secrets, and how much memory they take.

mod redact;
mod shape;
mod wire;
