//! Needs of the program and its packages on a distribution: how a static program finds names, units and scripts made for a prefix, and
//! the contents of the tarball, the system extension and the rpm.

mod names;
mod packages;
mod rpm;
