//! What of the node is given to whom: a kubelet and a Nomad agent want the same thing of one daemon, with real containers.

mod compute;
mod devices;
mod hosted;
mod orchestrators;
mod ports;
