//! What of the node is given to whom: a kubelet and a Nomad agent want the same thing of one daemon, with real containers.

mod devices;
mod ports;
