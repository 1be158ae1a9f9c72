//! The gateway over the fake backend: what a frontend can rely on, and what the gateway never does to a
//! backend.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod blockers;
mod compute;
mod creation;
mod events;
mod exec;
mod isolation;
mod ledger;
mod listeners;
mod model;
mod node;
mod operations;
mod port_waits;
mod ports;
mod registration_order;
mod restart;
mod review;
mod starting;
mod stopping;
mod storm;
mod tasks;
mod unreadable;
mod unused_images;
