//! The metrics listener, and the shipped files for Prometheus and Grafana, on a real node with Debian's
//! Prometheus.

mod alerts;
mod dashboard;
mod files;
mod kinds;
mod listener;
mod series;
